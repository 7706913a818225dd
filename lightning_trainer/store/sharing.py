"""What the daemons of one store have in common: whose turn it is to train, the names of runs, and the id that all of
them prove.

The methods here are for a store that belongs to one daemon alone; ``PostgresStore`` overrides them.
"""

from collections.abc import Callable

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.database import Database, Result


class Sharing(Database):
    """The part of a store that tells its daemons apart, and keeps them out of each other's way."""

    shared = False
    """Whether several daemons may have the store open; if not, every turn belongs to its only daemon."""

    async def daemon_id(self, own: str) -> str:
        """Return the id that every daemon of the store proves: that of the first one, kept in the store."""
        return own

    async def hold_run(self, name: str, holder: str, lasts_s: float) -> bool:
        """Hold a run's name for some seconds from now, or extend the caller's hold; return False while another caller
        holds it.

        Args:
            holder: the caller, which may come back through another daemon.
        """
        return True

    async def release_run(self, name: str, holder: str) -> None:
        """End the caller's hold on a run's name."""

    async def held_runs(self) -> list[str]:
        """Return the names that callers hold, through any of several daemons."""
        return []

    async def take_turn(self, policy: str, holder: str) -> str | None:
        """Take the turn to train a policy, for some seconds; return None if it is ours now, else its holder.

        Args:
            holder: the daemon's URL, for display.
        """
        return None

    async def renew_turn(self, policy: str) -> bool:
        """Extend our turn; return False if another daemon has taken it."""
        return True

    async def give_up_turn(self, policy: str) -> None:
        """End our turn, so that the next daemon need not wait."""

    def _fenced(self, policy: str, operation: Callable[[Connection], Result]) -> Callable[[Connection], Result]:
        """Return the operation, made to fail if another daemon holds the turn."""
        return operation

    async def write_in_turn(self, policy: str, operation: Callable[[Connection], Result]) -> Result:
        """Like :meth:`write`, but only for the daemon that trains the policy.

        Raises:
            TurnLostError: another daemon trains it.
        """
        return await self._write(self._fenced(policy, operation))
