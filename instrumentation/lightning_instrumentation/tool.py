"""Tool execution: an ``execute_tool`` span from a tool's start until its result, around everything that the tool does.

``@lt.tool`` is for functions; an adapter creates a ``ToolCall`` where its framework runs a tool, and knows the format
of the result.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from lightning_instrumentation import semconv
from lightning_instrumentation.decorated import decorated
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import block_scope, current, use_scope
from lightning_instrumentation.spans import lifecycle
from lightning_instrumentation.spans.messages import as_json, plain_copy

if TYPE_CHECKING:
    from opentelemetry.trace import Span

F = TypeVar("F", bound=Callable[..., Any])

MOST_YIELDED: Final = 1000
"""Number of yielded items that are recorded: a tool may never end."""
_USAGE = 'write @lt.tool or @lt.tool("name") above a function, below a decorator of your framework'


class ToolCall:
    """A context manager for a tool that returns once; a tool that yields runs in ``scope`` and calls ``end`` itself."""

    __slots__ = ("_body", "_capture_content", "_span", "scope")

    def __init__(self, name: object, call_id: object, arguments: Callable[[], Any]) -> None:
        """Begin the span.

        Args:
            name: the tool's name.
            call_id: the model's own id of this call; None if the framework does not pass it on.
            arguments: called only if content is recorded; returns the model's arguments, as text or as a value.
        """
        self.scope = current()
        self._span: Span | None = None
        self._capture_content = False
        self._body: use_scope | None = None
        guarded("tool", self._begin, str(name), call_id, arguments)

    def _begin(self, name: str, call_id: object, arguments: Callable[[], Any]) -> None:
        started = runtime()
        if started is None or self.scope.uncaptured:
            return
        self._capture_content = started.settings.capture_content
        attributes = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: name}
        if call_id is not None:
            attributes[semconv.TOOL_CALL_ID] = str(call_id)
        if self._capture_content:
            attributes[semconv.TOOL_CALL_ARGUMENTS] = _text(arguments())
        self._span = lifecycle.begin(started.tracer, f"{semconv.EXECUTE_TOOL} {name}", attributes)
        if self._span is not None:
            self.scope = replace(self.scope, span=self._span)

    @property
    def recorded(self) -> bool:
        """Whether the call has a span, which is then the span of its scope."""
        return self._span is not None

    def returned(self, result: Callable[[], Any], *, failed: bool = False) -> None:
        """Record the result that the model will get; ``failed`` if the tool reported an error instead of raising it."""
        if self._span is not None:
            guarded("tool", self._describe, self._span, result, failed)

    def _describe(self, span: Span, result: Callable[[], Any], failed: bool) -> None:
        text = _text(result()) if self._capture_content else ""
        if self._capture_content:
            span.set_attribute(semconv.TOOL_CALL_RESULT, text)
        if failed:
            lifecycle.mark_failed(span, "tool_error", text or "the tool reported an error")

    def end(self, error: BaseException | None = None) -> None:
        """End the span; ``error`` is what the tool raised, None if it returned. Only the first end counts."""
        span, self._span = self._span, None
        if isinstance(error, GeneratorExit):
            # A tool that yields and was closed early, perhaps by garbage collection, has not failed.
            lifecycle.end_soon(span)
        else:
            lifecycle.end(span, error)

    def __enter__(self) -> ToolCall:
        self._body = block_scope(self.scope)
        self._body.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._body is not None
        self._body.__exit__(kind, error, traceback)
        self.end(error)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_json(value)


class _FunctionCall:
    """One call of a decorated function."""

    __slots__ = ("_call", "_more", "_yielded")

    def __init__(self, name: str, arguments: Callable[[], Any]) -> None:
        runtime(again=True)  # a framework's tool, which is hooked, does not start a stopped client
        self._call = ToolCall(name, None, arguments)
        self._yielded: list[Any] | None = None
        self._more = 0

    def body(self) -> use_scope:
        return use_scope(self._call.scope)

    def yielded(self, value: Any) -> None:
        if self._yielded is None:
            self._yielded = []
        if len(self._yielded) < MOST_YIELDED:
            self._yielded.append(guarded("tool", plain_copy, value))
        else:
            self._more += 1

    def returned(self, value: Any) -> None:
        if self._yielded is None:
            self._call.returned(lambda: plain_copy(value))
        else:
            self._say_yielded()

    def _say_yielded(self) -> None:
        more = [f"... and {self._more} more"] if self._more else []
        self._call.returned(lambda: [*(self._yielded or ()), *more])

    def end(self, error: BaseException | None = None) -> None:
        if error is not None and self._yielded is not None:
            self._say_yielded()
        self._call.end(error)


@overload
def tool(name: str | None = None) -> Callable[[F], F]: ...


@overload
def tool(name: F) -> F: ...


def tool(name: Any = None) -> Any:
    """Record every call of a function as a tool execution: arguments, result, error, and what happens inside.

    Arguments are recorded by name, without ``self`` and ``cls``. The result of a generator is its first 1,000 items.
    Nothing that the function takes or returns is changed or consumed: of an iterator, only the type is recorded.

    Args:
        name: the tool's name; by default the function's own.

    Raises:
        TypeError: the name is not text or is empty, or the decorated object is not a function.
    """
    if name is None or isinstance(name, str):
        if name is not None and not name.strip():
            raise TypeError(f"a tool needs a name that is not empty, got {name!r}; {_USAGE}")
        return lambda function: _decorate(function, name)
    if callable(name) or isinstance(name, (staticmethod, classmethod)):
        return _decorate(name, None)
    raise TypeError(f"a tool's name is text, got {name!r} ({type(name).__name__}); {_USAGE}")


def _decorate(function: Any, name: str | None) -> Any:
    def begin(body: Any) -> Any:
        own = name or body.__name__
        signature = _signature(body)
        return lambda args, kwargs: _FunctionCall(own, lambda: _arguments(signature, args, kwargs))

    return decorated(function, begin, what="@lt.tool", usage=_USAGE)


def _signature(function: Any) -> inspect.Signature | None:
    """Return the parameters of a function; None if it does not tell them, such as a builtin."""
    try:
        if sys.version_info >= (3, 14):  # annotations are evaluated when read, and may name what is defined later
            from annotationlib import Format

            return inspect.signature(function, annotation_format=Format.STRING)
        return inspect.signature(function)
    except Exception:  # raised by whatever other decorators have put in the function's place
        return None


def _arguments(signature: inspect.Signature | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    try:
        given = dict(signature.bind(*args, **kwargs).arguments) if signature is not None else None
    except TypeError:  # the function will raise it itself
        given = None
    if given is None or signature is None:
        return plain_copy({**({"args": args} if args else {}), **kwargs})
    first = next(iter(signature.parameters), None)
    if first in ("self", "cls"):
        given.pop(first, None)
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            given |= given.pop(parameter.name, {})
    return plain_copy(given)
