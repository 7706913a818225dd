"""Blocks of code with their own scope: the common base, ``lt.state``, and ``lt.uncaptured``."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from types import TracebackType
from typing import Final, Self

from lightning_instrumentation.failures import failures
from lightning_instrumentation.scope import Scope, block_scope, current, use_scope

# The base: context managers for ``with`` and ``async with``.


class Block:
    """A context manager for both kinds of ``with``; subclasses have ``__enter__`` and ``__exit__``."""

    __slots__ = ()

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)


class ScopeBlock(Block):
    """A block that runs in its own scope; it is not reentrant."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body: use_scope | None = None

    def _scope(self) -> Scope:
        """Return the scope in which the block runs."""
        raise NotImplementedError

    def _entered_already(self) -> str:
        """Return the error message for a block that is entered inside itself."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self._body is not None:
            raise RuntimeError(self._entered_already())
        self._body = block_scope(self._scope())
        self._body.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._body is not None:
            self._body.__exit__(kind, error, traceback)
            self._body = None


# ``with lt.state("kitchen"):`` says that the model calls inside are made in this state of the environment. It is for
# credit schemes that compare calls by state (GiGPO's anchor state): calls of one agent in attempts of one group are in
# the same state if the states' names are equal. Without a name the prompt decides, and it differs each time if it
# contains a history, a clock, or reworded instructions.

LONGEST_NAME: Final = 64
"""In characters. A longer name (a whole observation, say) is recorded as its digest: as good for comparison, and its
text never leaves the process."""


class State(ScopeBlock):
    """A block of code; see ``state``."""

    __slots__ = ("_entered", "name")

    def __init__(self, name: object) -> None:
        if name is None or not str(name).strip():
            raise TypeError(f"a state needs a name that is not empty, got {name!r}; pass any text or number")
        self.name = _recorded(str(name))
        super().__init__()
        self._entered = False

    def _scope(self) -> Scope:
        self._entered = True
        return replace(current(), state=self.name)

    def _entered_already(self) -> str:
        return f"state {self.name} is entered already; make a new one for every block"

    def __del__(self) -> None:
        if not getattr(self, "_entered", True):
            failures.note(
                "state-not-entered",
                "lt.state(...) names nothing by itself; write `with lt.state(...):` around model calls",
            )


def state(name: object) -> State:
    """Name the state in which the model calls of a block are made: ``with`` or ``async with``.

    Args:
        name: text or a number, equal for equal states. A name longer than 64 characters is recorded as a digest. The
            innermost name counts, also for calls of agents that the block calls. The name applies until the block ends,
            but not inside a rollout that begins in the block.

    Raises:
        TypeError: the name is None or empty.
    """
    return State(name)


def _recorded(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


# ``with lt.uncaptured():``: inside, this client does nothing. OpenTelemetry's suppress key is different: other
# instrumentations set it around the very calls that they record.


class Uncaptured(ScopeBlock):
    """A block of code; see ``uncaptured``."""

    __slots__ = ()

    def _scope(self) -> Scope:
        return replace(current(), uncaptured=True)

    def _entered_already(self) -> str:
        return "this block is entered already; call lt.uncaptured() anew for every block"


def uncaptured() -> Uncaptured:
    """Opt a block of code out of capture: ``with`` or ``async with``.

    Model calls inside go unchanged to the address that your code gives them, even if a policy claims their agent. Model
    calls, tools, and agents inside leave no span. The same holds in threads and tasks started inside. Rollouts and
    rewards are still recorded, because you report them yourself. The gateway still answers, and records, calls whose
    base URL is its own.
    """
    return Uncaptured()
