"""The current scope: which attempt, which agent, under which span.

It is kept in our own context variable and not in OpenTelemetry's context: spans of the user's own instrumentation must
not become children of ours, the user's propagator must not send our ids to untrusted hosts, and another library's
misplaced ``detach`` must not lose our ids. Identity that arrived as OpenTelemetry baggage is used if this process has
none.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from lightning_instrumentation import semconv

if TYPE_CHECKING:
    from types import TracebackType

    from opentelemetry.trace import Span

    from lightning_instrumentation.prompts.version import PromptVersion

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which attempt a span belongs to."""

    rollout_id: str
    attempt_id: str | None = None
    task_id: str | None = None
    group_id: str | None = None
    mode: str | None = None
    of_run: bool = False
    """Whether a runner or the launcher began the attempt: an ``lt.rollout`` inside belongs to it."""

    def attributes(self) -> dict[str, str]:
        """Return the known ids by attribute name."""
        named = {
            semconv.ROLLOUT_ID: self.rollout_id,
            semconv.ATTEMPT_ID: self.attempt_id,
            semconv.TASK_ID: self.task_id,
            semconv.GROUP_ID: self.group_id,
            semconv.ROLLOUT_MODE: self.mode,
        }
        return {key: value for key, value in named.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Agent:
    """The active agent. ``place`` distinguishes agents of the same name that a framework nests."""

    name: str
    source: str
    place: str = ""
    explicit: bool = True
    """False for a name that was not explicitly chosen, such as the node ``model`` of every LangChain agent."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What is running: attempt, agent, and span."""

    identity: Identity | None = None
    agent: Agent | None = None
    around: Agent | None = None
    """The framework's agent when ``agent`` was entered: if it differs now, the framework's is the inner one."""
    span: Span | None = None
    state: str | None = None
    """The environment's state, as ``lt.state`` names it; recorded only on model calls."""
    uncaptured: bool = False
    """Whether the user has opted out of capture here."""
    prompts: Mapping[str, PromptVersion] | None = field(default=None, compare=False)
    """The prompt versions that a search for better prompts gives the code here, by name."""
    replaced_by: Scope | None = field(default=None, init=False, compare=False, repr=False)
    """The scope around this scope's block, set if the block ended where its context could not be restored; that scope
    was not itself replaced at that time."""


_EMPTY = Scope()
_current: ContextVar[Scope] = ContextVar("lightning.scope", default=_EMPTY)
_framework_agents: list[Callable[[], Agent | None]] = []
_framework_runs: list[Callable[[], tuple[Agent, Agent | None] | None]] = []
"""Functions of frameworks that return, with an agent, the agent of another framework that its run is inside of."""
_ambient: list[Callable[[], Agent | None]] = []
_default_agent: list[Agent] = []


def current() -> Scope:
    """Return the current scope: the innermost whose block has not ended."""
    return _still_valid(_current.get())


def _still_valid(scope: Scope) -> Scope:
    while scope.replaced_by is not None:
        scope = scope.replaced_by
    return scope


class use_scope:
    """Makes ``scope`` the current one inside the block.

    Restores by comparison and not by token: a block may be left in another context than it was entered in (a
    generator's, an async fixture's), where resetting a token raises.
    """

    __slots__ = ("_before", "_scope")

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._before = _EMPTY

    def __enter__(self) -> Scope:
        self._before = _current.get()
        _current.set(self._scope)
        return self._scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _current.get() is self._scope:
            _current.set(self._before)


class block_scope(use_scope):
    """Makes ``scope``, which no other block uses, the current one inside a ``with`` block of the user's.

    If a generator's reader leaves it early, asyncio closes the generator in another task, on a copy of the reader's
    context, from which the reader's own context cannot be restored. The scope is then marked instead, so that
    ``current`` skips it in every context where it is still set. It is not marked if its block ends normally, because a
    task that the block has started may outlive the block.
    """

    __slots__ = ("_token",)

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self._token: Token[Scope] | None = None

    def __enter__(self) -> Scope:
        self._before = current()
        self._token = _current.set(self._scope)
        return self._scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        token, self._token = self._token, None
        if token is None:
            return
        if _current.get() is self._scope:
            try:
                _current.reset(token)
                return
            except ValueError:  # another context
                _current.set(self._before)
        before = _still_valid(self._before)
        if before is not self._scope:
            object.__setattr__(self._scope, "replaced_by", before)


def add_framework(ask: Callable[[], Agent | None]) -> None:
    """Register an adapter's function that returns the framework's active agent."""
    if ask not in _framework_agents:
        _framework_agents.append(ask)


def add_framework_of_runs(ask: Callable[[], tuple[Agent, Agent | None] | None]) -> None:
    """Register such a function of a framework whose runs may be inside of another framework's agent, or around it: the
    function also returns what ``agent_around_run`` returned when the run began."""
    if ask not in _framework_runs:
        _framework_runs.append(ask)


def agent_around_run() -> Agent | None:
    """Return the agent of another framework that a run which begins here is inside of."""
    return _first(_framework_agents)


def set_ambient(ask: Callable[[], Agent | None]) -> None:
    """Set the function that is asked if no adapter has an answer."""
    _ambient[:] = [ask]


def set_default_agent(name: str | None) -> None:
    """Set the agent for calls for which nothing else names one."""
    _default_agent[:] = [Agent(name, "init")] if name else []


def framework_agent() -> Agent | None:
    """Return the agent that a framework runs here; None if there is none."""
    other = _first(_framework_agents)
    run = _first(_framework_runs)
    if run is not None:
        agent, around = run
        if other is None or (agent.explicit and (not other.explicit or other == around)):
            return agent
    return other or _first(_ambient)


def _first(asked: Sequence[Callable[[], T | None]]) -> T | None:
    for ask in asked:
        answer = ask()
        if answer is not None:
            return answer
    return None


def current_agent() -> Agent | None:
    """Return the active agent: the innermost explicitly chosen name."""
    scope = current()
    inside = framework_agent()
    if inside is not None and inside.explicit and inside != scope.around:
        return inside
    return scope.agent or (_default_agent[0] if _default_agent else inside)


def with_agent(agent: Agent, span: Span | None = None) -> Scope:
    """Return the current scope with ``agent`` as its active agent, below ``span`` if given."""
    before = current()
    return replace(before, agent=agent, around=framework_agent(), span=span or before.span)


def capture_scope() -> Scope:
    """Return the current scope including the framework's agent, for code that runs in another context."""
    scope = current()
    agent = current_agent()
    if agent is not scope.agent and agent is not None and agent.source != "init":
        # The other context lacks the variables that the framework's answer depends on.
        return replace(scope, agent=agent, around=agent)
    return scope


def for_another_thread() -> Scope | None:
    """Return the scope that another thread has to enter; None if there is nothing to carry over."""
    scope = capture_scope()
    return None if scope is _EMPTY else scope


async def await_inside(scope: Scope, work: Awaitable[T]) -> T:
    """Await ``work`` in ``scope``."""
    with use_scope(scope):
        return await work


async def each_inside(scope: Scope, stream: AsyncIterator[T]) -> AsyncGenerator[T]:
    """Yield what ``stream`` yields; its body runs in ``scope``, the consuming code does not."""
    try:
        while True:
            try:
                with use_scope(scope):
                    item = await anext(stream)
            except StopAsyncIteration:
                return
            yield item
    finally:
        close = getattr(stream, "aclose", None)
        if close is not None:
            with use_scope(scope):
                await close()
