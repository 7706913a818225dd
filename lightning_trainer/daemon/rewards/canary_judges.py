"""Judges asked about the rollouts of one canary; training, which usually asks them, waits for the decision."""

import logging
from collections.abc import Callable, Collection, Sequence

from lightning_trainer.daemon.rewards.judges import ask_judge, budget_of
from lightning_trainer.judges.judging import Judging
from lightning_trainer.store.store import Store
from lightning_trainer.types import Attempt

_log = logging.getLogger(__name__)


class CanaryJudges:
    """What the judges may spend on one canary, and what was said of them: a canary asks a thousand times, and the first
    reason why a reward is missing says enough."""

    def __init__(self, judges: Collection[Judging], store: Store, say: Callable[[str], None]) -> None:
        self._judges = judges
        self._store = store
        self._say = say
        self._budgets = {judging.name: budget_of(judging) for judging in judges}
        self._failed: set[str] = set()

    def __len__(self) -> int:
        return len(self._judges)

    @property
    def spent(self) -> str | None:
        """Return which judge may not spend what its next question could cost, and why; None if each may."""
        for name, budget in self._budgets.items():
            if budget.refusal is not None:
                return f"judge {name}, {budget.refusal}"
        return None

    async def ask(self, attempts: Sequence[Attempt]) -> None:
        """Have all of them asked about attempts; what goes wrong is said, and costs no more than the reward."""
        for judging in self._judges:
            sentence = await ask_judge(judging, self._store, attempts, self._budgets[judging.name])
            if sentence is not None and judging.name not in self._failed:
                self._failed.add(judging.name)
                self._say(sentence)
                _log.warning("%s", sentence)
