"""``with lightning.state("kitchen"):``: the model calls inside are made in this state of the environment.

For credit schemes that compare calls by the state that they were made in (GiGPO's anchor state): calls of one agent in
attempts of one group are in the same state where its name is the same. Without a name the prompt decides, which a
history, a clock or a reworded instruction makes another one each time.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from typing import Final

from lightning_instrumentation.block import ScopeBlock
from lightning_instrumentation.failures import failures
from lightning_instrumentation.scope import Scope, current

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
                "lightning.state(...) names nothing by itself; write `with lightning.state(...):` around model calls",
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
