"""One base for the adapters of several policies, which take turns in it.

The model has room for the matrices of one adapter, where verl, FSDP and checkpoints find them. A policy whose turn it
is has its values there, and its own AdamW and schedule in verl's engine; the values of the others are kept outside of
the model. So a step, a publication, and a checkpoint are bit for bit what they are for a policy that has the model to
itself, and a turn costs two copies of an adapter.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch

from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.adapter_weights import adapter_values, put_values
from lightning_trainer.training.update.engines.strategies import optimizer_config
from lightning_trainer.training.update.host import LogWriter
from lightning_trainer.training.update.rounding import forget_gathered
from lightning_trainer.training.update.worker import UpdateWorker


class Adapter:
    """What belongs to one policy alone: its matrices' values, its optimizer with the moments, and its schedule."""

    def __init__(
        self, values: Mapping[str, torch.Tensor], optimizer_config: Any, optimizer: Any, schedule: Any
    ) -> None:
        """Keep the values and the optimizer until the adapter's turn.

        Args:
            values: by the names of the matrices in the model; each process's part of them.
            optimizer_config: verl's, from which its engine reads the gradient's largest norm.
        """
        self.values: Mapping[str, torch.Tensor] | None = values
        """None while they are in the model."""
        self.optimizer_config, self.optimizer, self.schedule = optimizer_config, optimizer, schedule


class SharedBase:
    """A frozen model, and the adapter that is in it."""

    def __init__(self, settings: TrainerSettings) -> None:
        """Load the model.

        Args:
            settings: of any of its policies; what concerns the model is alike in all of them.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
        """
        self.worker = UpdateWorker(settings)
        self._untrained = adapter_values(self.worker.module)
        self._present: Adapter | None = None

    def new_adapter(self, settings: TrainerSettings) -> Adapter:
        """Return an untrained adapter, the same for every policy: with it the model is what the run started from."""
        engine, own = self.worker.engine, optimizer_config(settings.at_step(1))
        of_present, engine.optimizer_config = engine.optimizer_config, own
        try:
            with contextlib.redirect_stdout(LogWriter()):
                optimizer = engine._build_optimizer(engine.module)
                schedule = engine._build_lr_scheduler(optimizer)
        finally:
            engine.optimizer_config = of_present
        return Adapter(self._untrained, own, optimizer, schedule)

    def give_turn(self, adapter: Adapter) -> None:
        """Let the model compute with an adapter, and train it, from now on."""
        if adapter.values is None:
            return
        forget_gathered(self.worker.module)
        if self._present is not None:
            self._present.values = adapter_values(self.worker.module)
        put_values(self.worker.module, adapter.values)
        engine = self.worker.engine
        engine.optimizer_config, engine.optimizer, engine.lr_scheduler = (
            adapter.optimizer_config,
            adapter.optimizer,
            adapter.schedule,
        )
        checkpoints = engine.checkpoint_manager
        checkpoints.optimizer, checkpoints.lr_scheduler = adapter.optimizer, adapter.schedule
        adapter.values, self._present = None, adapter

    def forget(self, adapter: Adapter) -> None:
        """Free what belongs to an adapter whose policy is no longer trained."""
        if adapter is self._present:
            self._present = None
