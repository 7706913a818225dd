"""The trainers of one process: of one policy, or of several, each an adapter on a shared base.

If several processes train together, each has the same trainers and gets the same calls (``process_group``).
"""

from collections.abc import Sequence
from typing import Any

from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.trainer import Trainer
from lightning_trainer.training.update.shared_base import Adapter, SharedBase


class Trainers:
    """The trainers, by policy. Not thread-safe: one call at a time."""

    def __init__(self, settings: Sequence[TrainerSettings]) -> None:
        """Load what several policies share; a single policy's model is loaded when it is opened.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
        """
        self._settings = {one.policy: one for one in settings}
        self._base = SharedBase(settings[0]) if len(settings) > 1 else None
        self._trainers: dict[str, Trainer] = {}
        self._adapters: dict[str, Adapter] = {}

    def open(self, policy: str) -> Trainer:
        """Return the policy's trainer, new and at step 0.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
        """
        self.drop(policy)
        settings = self._settings[policy]
        if self._base is None:
            trainer = Trainer(settings)
        else:
            self._adapters[policy] = adapter = self._base.new_adapter(settings)
            self._base.give_turn(adapter)
            trainer = Trainer(settings, self._base.worker)
        self._trainers[policy] = trainer
        return trainer

    def drop(self, policy: str) -> None:
        """Drop the policy's trainer; what others share stays loaded."""
        self._trainers.pop(policy, None)
        adapter = self._adapters.pop(policy, None)
        if self._base is not None and adapter is not None:
            self._base.forget(adapter)

    def call(self, policy: str, method: str, *arguments: Any) -> Any:
        """Call a method of the policy's trainer."""
        trainer = self._trainers[policy]
        if self._base is not None:
            self._base.give_turn(self._adapters[policy])
        return getattr(trainer, method)(*arguments)
