"""Blocks of code in another scope: what they have in common, ``lt.state`` and ``lt.uncaptured``."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from types import TracebackType
from typing import Final, Self

from lightning_instrumentation.failures import failures
from lightning_instrumentation.scope import Scope, current, use_scope

# Blocks of code that something is said of: ``with`` and ``async with`` alike.


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
    """A block that runs in a scope of its own, once at a time."""

    __slots__ = ("_body",)

    def __init__(self) -> None:
        self._body: use_scope | None = None

    def _scope(self) -> Scope:
        """Return what it runs in."""
        raise NotImplementedError

    def _entered_already(self) -> str:
        """Return what to say where it is entered inside of itself."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self._body is not None:
            raise RuntimeError(self._entered_already())
        self._body = use_scope(self._scope())
        self._body.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._body is not None:
            self._body.__exit__(kind, error, traceback)
            self._body = None


# ``with lt.state("kitchen"):``: the model calls inside are made in this state of the environment.
#
# For credit schemes that compare calls by the state that they were made in (GiGPO's anchor state): calls of one agent
# in attempts of one group are in the same state where its name is the same. Without a name the prompt decides, which
# a history, a clock or a reworded instruction makes another one each time.

LONGEST_NAME: Final = 64
"""Characters. Of a longer one (a whole observation, say) its digest is recorded: as good to compare, and nothing that
was said leaves the process."""


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
    """Name the state that the model calls of a block are made in: ``with`` or ``async with``.

    Args:
        name: text or a number, equal for what is the same state; of more than 64 characters the digest is recorded.
            The innermost name counts, also for calls of agents that the block calls. It ends with the block, and does
            not reach into a rollout that begins inside.

    Raises:
        TypeError: the name is None or empty.
    """
    return State(name)


def _recorded(name: str) -> str:
    if len(name) <= LONGEST_NAME:
        return name
    return blake2b(name.encode(errors="surrogatepass"), digest_size=16).hexdigest()


# ``with lt.uncaptured():``: what happens inside is as if this client were not there.
#
# OpenTelemetry's suppress key is not that: other instrumentations set it around the very calls that they record.


class Uncaptured(ScopeBlock):
    """A block of code; see ``uncaptured``."""

    __slots__ = ()

    def _scope(self) -> Scope:
        return replace(current(), uncaptured=True)

    def _entered_already(self) -> str:
        return "this block is entered already; call lt.uncaptured() anew for every block"


def uncaptured() -> Uncaptured:
    """Leave a block of code alone: ``with`` or ``async with``.

    Model calls inside go where they always went, no matter who claims their agent, with nothing added; they, tools and
    agents leave no span. It reaches into threads and tasks that are started inside. Rollouts and rewards are still
    recorded: these you report yourself. Calls whose base URL is the gateway's own are answered, and recorded, there.
    """
    return Uncaptured()
