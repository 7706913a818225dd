"""The files that stages of a policy are shown: read once at the start, and shown one batch a step.

The file of a stage that is over is not read, and may be gone.
"""

from pathlib import Path

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.stages import first_steps
from lightning_trainer.dataset.demonstration_batches import build_demonstrations, rows_of_step
from lightning_trainer.dataset.demonstrations import Demonstration, read_demonstrations
from lightning_trainer.errors import ConfigError
from lightning_trainer.models.resolve import vocabulary_of
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.samples.batches import Build


class Demonstrations:
    """What is shown in which step; nothing if the policy has no stage with ``data``."""

    def __init__(self, policy: PolicyConfig, *, seed: int = 0) -> None:
        self._policy = policy
        self._seed = seed
        self._rows: dict[int, tuple[Demonstration, ...]] = {}
        """By the first step of the stage."""

    def read(self, model_dir: Path, chat_template: Path | None = None, *, done: int = 0) -> None:
        """Read the files of all stages that are not over.

        Args:
            model_dir: the policy's model, whose tokenizer turns words into tokens.
            chat_template: what the engine renders prompts with, if it is not the model's own.
            done: the newest recorded step; all later steps have higher numbers, even after a rollback.

        Raises:
            ConfigError: there is no such file.
            DatasetError: a file cannot be shown; the message names the row.
            ModelError: there are words, and the model has no tokenizer or chat template.
        """
        template = None if chat_template is None else chat_template.read_text(encoding="utf-8")
        vocabulary = vocabulary_of(model_dir) or 0
        for first_step, stage in zip(first_steps(self._policy.stage), self._policy.stage, strict=True):
            over = stage.steps is not None and done >= first_step + stage.steps - 1
            if stage.data is not None and not over:
                if not stage.data.is_file():
                    raise ConfigError(f"policy.{self._policy.name}.stage.data: there is no file {stage.data}")
                objective = self._policy.at_step(first_step).algorithm.objective
                assert objective != "rl", "refused where the configuration is read"
                self._rows[first_step] = read_demonstrations(
                    stage.data, objective, vocabulary, lambda: PolicyTokenizer(model_dir, template)
                )

    def has(self, step: int) -> bool:
        """Whether a step is shown a file."""
        found = self._policy.stage_at(step)
        return found is not None and found[0] in self._rows

    def build(self, step: int) -> tuple[Build, dict[str, float]]:
        """Return the batch of a step that is shown a file, and the step's metrics."""
        found = self._policy.stage_at(step)
        assert found is not None, "asked for a step that is shown nothing"
        first_step, stage = found
        rows, epoch = rows_of_step(self._rows[first_step], step - first_step, stage.batch_size, self._seed)
        build = build_demonstrations(rows, self._policy.at_step(step), step)
        return build, {"data/rows": float(len(rows)), "data/epoch": float(epoch)}
