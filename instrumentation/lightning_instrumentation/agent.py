"""``@lt.agent("name")`` and ``with lt.agent("name"):``: everything below is attributed to that agent.

The innermost agent wins. Decorate generators rather than write ``with`` in their bodies: a decorated generator, or one
that a decorated function returns, is inside its agent only while its own body runs; a ``with`` block in a generator's
body stays active while the generator is suspended, and is lost if the generator is resumed in another context.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from lightning_instrumentation import semconv
from lightning_instrumentation.block import Block
from lightning_instrumentation.decorated import decorated
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import Agent, block_scope, current, use_scope, with_agent
from lightning_instrumentation.spans import lifecycle

if TYPE_CHECKING:
    from opentelemetry.trace import Span

F = TypeVar("F", bound=Callable[..., Any])

_USAGE = 'write @lt.agent("name") above a function, or `with lt.agent("name"):` around code'


class _Invocation:
    """One invocation of an agent: an ``invoke_agent`` span and the scope in which the body runs."""

    __slots__ = ("_span", "scope")

    def __init__(self, name: str, source: str) -> None:
        self.scope = current()
        self._span: Span | None = None
        guarded("agent", self._begin, Agent(name, source))

    def _begin(self, agent: Agent) -> None:
        started = runtime(again=True)
        if started is None or self.scope.uncaptured:
            return
        self._span = lifecycle.begin(
            started.tracer,
            f"{semconv.INVOKE_AGENT} {agent.name}",
            {
                semconv.OPERATION: semconv.INVOKE_AGENT,
                semconv.AGENT_NAME: agent.name,
                semconv.AGENT_SOURCE: agent.source,
            },
        )
        self.scope = with_agent(agent, self._span)

    def body(self) -> use_scope:
        return use_scope(self.scope)

    def yielded(self, value: Any) -> None:
        """Ignore the value: what an agent yields or returns is not recorded."""

    returned = yielded

    def end(self, error: BaseException | None = None) -> None:
        if isinstance(error, GeneratorExit):
            # A generator that was closed early, perhaps by garbage collection, has not failed.
            lifecycle.end_soon(self._span)
        else:
            lifecycle.end(self._span, error)
        self._span = None


class NamedAgent(Block):
    """The result of ``lt.agent("name")``: a decorator for functions, and a context manager (sync and async)."""

    __slots__ = ("_body", "_invocation", "_used", "name")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self._invocation: _Invocation | None = None
        self._body: use_scope | None = None
        self._used = False

    def __call__(self, function: F) -> F:
        self._used = True
        return _decorate(function, self.name)

    def __enter__(self) -> Self:
        self._used = True
        if self.name is None:
            raise TypeError(f"a block of code has no name that its agent could take, got None; {_USAGE}")
        if self._invocation is not None:
            raise RuntimeError(f"agent {self.name!r} is entered already; make a new one for every block")
        self._invocation = _Invocation(self.name, "with")
        self._body = block_scope(self._invocation.scope)
        self._body.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        invocation, self._invocation = self._invocation, None
        if self._body is not None and invocation is not None:
            self._body.__exit__(kind, error, traceback)
            invocation.end(error)

    def __del__(self) -> None:
        if not getattr(self, "_used", True):
            failures.note("agent-not-entered", f"lt.agent({self.name!r}) names nothing by itself; {_USAGE}")


@overload
def agent(name: str | None = None) -> NamedAgent: ...


@overload
def agent(name: F) -> F: ...


def agent(name: Any = None) -> Any:
    """Name the agent that a function or a block of code belongs to. A function's default is its own name.

    Raises:
        TypeError: the name is not text or is empty, the decorated object is not a function, or a block has no name.
    """
    if name is None or isinstance(name, str):
        if name is not None and not name.strip():
            raise TypeError(f"an agent needs a name that is not empty, got {name!r}; {_USAGE}")
        return NamedAgent(name)
    if callable(name) or isinstance(name, (staticmethod, classmethod)):
        return _decorate(name, None)
    raise TypeError(f"an agent's name is text, got {name!r} ({type(name).__name__}); {_USAGE}")


def _decorate(function: Any, name: str | None) -> Any:
    def begin(body: Any) -> Any:
        own = name or body.__name__
        return lambda args, kwargs: _Invocation(own, "decorator")

    return decorated(function, begin, what="@lt.agent", usage=_USAGE, into_generators=True)
