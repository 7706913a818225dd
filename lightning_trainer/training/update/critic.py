"""The critic: what a trained token's state is worth, learned along with the policy by verl's value loss.

The value of a token is that of the state before it. Source: Schulman et al., PPO (arXiv 1707.06347), section 5.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from verl.workers.utils.losses import value_loss

from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.batch.tensors import TokenValues, training_tensors
from lightning_trainer.training.update.configuration import value_loss_config, worker_config
from lightning_trainer.training.update.engines import value as _  # registers them with verl  # noqa: F401
from lightning_trainer.training.update.host import ModelHost
from lightning_trainer.training.update.metrics import TokenWeighted, Update
from lightning_trainer.types import Sample


class Critic(ModelHost):
    """A value model that starts from the policy's weights, and its optimizer."""

    def __init__(self, settings: TrainerSettings) -> None:
        """Load it.

        Raises:
            TrainingError: the model cannot carry a value head.
        """
        lr = settings.algorithm.critic.lr
        super().__init__(settings, worker_config(settings, settings.model_dir, "value_model", lr))
        self.begin(settings)

    def begin(self, settings: TrainerSettings) -> None:
        """Learn by these settings from now on."""
        self._lr = settings.algorithm.critic.lr
        self._loss = TokenWeighted(partial(value_loss, config=value_loss_config(settings)))

    def values(self, samples: Sequence[Sample]) -> dict[str, list[float]]:
        """Return the value before every trained token, 0.0 elsewhere, by sample id."""
        return self.measure(samples, "values")["values"]

    def train(
        self,
        samples: Sequence[Sample],
        values: TokenValues,
        returns: TokenValues,
        masks: Mapping[str, Sequence[int]],
        *,
        last: bool = True,
    ) -> Update:
        """Take one optimizer step towards the returns.

        Args:
            samples: a mini-batch.
            values: what the critic said before the step; no value moves further from that than ``cliprange_value``.
            masks: by sample id, which trained tokens have a return; at least one per sample.
            last: of the step's updates.
        """
        tensors = training_tensors(
            samples, {"values": values, "returns": returns}, masks, experts=False, images=self.images
        )
        self._set_learning_rate()
        update = self.update(tensors, [len(sample.token_ids) for sample in samples], last=last)
        named = {name if "/" in name else f"critic/{name}": value for name, value in update.metrics.items()}
        return Update(named, update.tokens_computed)
