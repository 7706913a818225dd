"""What the daemons of one store have in common: whose turn it is to train, the names of runs, and the id that all of
them prove.

The defaults are those of a store that one daemon has alone; see ``PostgresStore``.
"""

from collections.abc import Callable

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.database import Database, Result


class Sharing(Database):
    """The part of a store that tells its daemons apart, and keeps them from each other's way."""

    shared = False
    """Whether several daemons may have it open; if not, every turn belongs to its only daemon."""

    async def daemon_id(self, own: str) -> str:
        """Return the id that every daemon of the store proves: that of the first one, kept in the store."""
        return own

    async def hold_run(self, name: str, holder: str, lasts_s: float) -> bool:
        """Hold a run's name for some seconds, again if it is held already; False while another daemon's caller has it.

        Args:
            holder: the caller, which may come back through another daemon.
        """
        return True

    async def release_run(self, name: str, holder: str) -> None:
        """End the caller's hold on a run's name."""

    async def held_runs(self) -> list[str]:
        """Return the names that callers of any of several daemons hold."""
        return []

    async def take_turn(self, policy: str, holder: str) -> str | None:
        """Take the turn to train a policy, for some seconds; return None if it is ours, else its holder.

        Args:
            holder: the daemon's URL, for display.
        """
        return None

    async def renew_turn(self, policy: str) -> bool:
        """Extend our turn; False if another daemon has it by now."""
        return True

    async def give_up_turn(self, policy: str) -> None:
        """End our turn, so that the next daemon need not wait."""

    def _fenced(self, policy: str, operation: Callable[[Connection], Result]) -> Callable[[Connection], Result]:
        """Return an operation that is refused if another daemon holds the turn."""
        return operation

    async def write_in_turn(self, policy: str, operation: Callable[[Connection], Result]) -> Result:
        """Like :meth:`write`, but only for the daemon that trains the policy.

        Raises:
            TurnLostError: another daemon does.
        """
        return await self._write(self._fenced(policy, operation))
