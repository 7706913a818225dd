"""A tool at work: an ``execute_tool`` span from before it runs until it has answered, around all that it does.

Shared by the adapters, each of which knows where its framework runs a tool and how the result reads.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from lightning_instrumentation import semconv, spans
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.messages import as_json
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import Scope, current, entered

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class ToolCall:
    """``with`` it around a tool that returns once; a tool that yields runs in ``scope`` and calls ``end`` itself."""

    __slots__ = ("_body", "_capture_content", "_span", "scope")

    def __init__(self, name: object, call_id: object, arguments: Callable[[], Any]) -> None:
        """Begin the span.

        Args:
            name: of the tool.
            call_id: the model's own id of this call; None where the framework does not pass it on.
            arguments: asked only where content is recorded; what the model passed, as text or as a value.
        """
        self.scope = current()
        self._span: Span | None = None
        self._capture_content = False
        self._body: entered | None = None
        guarded("tool", self._begin, str(name), call_id, arguments)

    def _begin(self, name: str, call_id: object, arguments: Callable[[], Any]) -> None:
        started = runtime()
        if started is None:
            return
        self._capture_content = started.settings.capture_content
        attributes = {semconv.OPERATION: semconv.EXECUTE_TOOL, semconv.TOOL_NAME: name}
        if call_id is not None:
            attributes[semconv.TOOL_CALL_ID] = str(call_id)
        if self._capture_content:
            attributes[semconv.TOOL_CALL_ARGUMENTS] = _text(arguments())
        self._span = spans.begin(started, f"{semconv.EXECUTE_TOOL} {name}", attributes)
        if self._span is not None:
            self.scope = Scope(self.scope.identity, self.scope.agent, self.scope.around, self._span)

    def returned(self, result: Callable[[], Any], *, failed: bool = False) -> None:
        """Record what the model will be told; ``failed`` where the tool reported an error instead of raising it."""
        if self._span is not None:
            guarded("tool", self._describe, self._span, result, failed)

    def _describe(self, span: Span, result: Callable[[], Any], failed: bool) -> None:
        text = _text(result()) if self._capture_content else ""
        if self._capture_content:
            span.set_attribute(semconv.TOOL_CALL_RESULT, text)
        if failed:
            spans.mark_failed(span, "tool_error", text or "the tool reported an error")

    def end(self, error: BaseException | None = None) -> None:
        if isinstance(error, GeneratorExit):
            # A tool that yields and was closed early, maybe because nobody holds it, has done what it was asked to do.
            spans.end_soon(self._span)
        else:
            spans.end(self._span, error)

    def __enter__(self) -> ToolCall:
        self._body = entered(self.scope)
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
