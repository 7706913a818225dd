"""One policy's weights and optimizer: steps over batches, published versions, checkpoints.

If several processes train it, each has such a trainer, and every call is made in all of them (``process_group``).

Invariant: a step is a function of (weights, optimizer state, batch, seed) alone, so repeating the recorded batches
after the last checkpoint gives the weights of an uninterrupted run. This module imports verl (10-20 s).
"""

import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path

import torch

from lightning_trainer.errors import TrainingError
from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.shared_memory import file_checksum
from lightning_trainer.training.checkpoint_folder import THE_WAY_ON, Manifest, model_mark, read_manifest, writing
from lightning_trainer.training.probe import probe_token_ids
from lightning_trainer.training.process_group import collect, on_first
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.adapter_weights import adapter_shape, adapter_tensors
from lightning_trainer.training.update.exporting import write_atomically
from lightning_trainer.training.update.learner import Learner
from lightning_trainer.training.update.rounding import rounded_weights
from lightning_trainer.training.update.worker import UpdateWorker
from lightning_trainer.types import StepReport, TrainingBatch

_TORCH_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Trainer:
    """Owns the weights of one policy. Not thread-safe: one call at a time."""

    def __init__(self, settings: TrainerSettings, base: UpdateWorker | None = None) -> None:
        """Load the model and build verl's worker.

        Args:
            base: the already loaded model with the policy's adapter; every call to this trainer must come while the
                adapter is swapped in (``shared_base``).

        Raises:
            TrainingError: the model or the settings cannot be trained with.
        """
        self._settings = settings
        self._model_mark = model_mark(settings.model_dir)
        self._learner = Learner(settings, base)
        self._probe_ids = probe_token_ids(
            settings.model_dir, self._learner.policy.vocabulary_size, settings.max_model_len
        )
        self._steps_done = 0

    @property
    def steps_done(self) -> int:
        """Return the step that the current weights come from; 0 is the initial model."""
        return self._steps_done

    @property
    def module(self) -> torch.nn.Module:
        """Return the policy's model."""
        return self._learner.policy.module

    def step(self, batch: TrainingBatch) -> StepReport:
        """Take one step over a batch: as many optimizer steps as its algorithm's epochs and mini-batches.

        Raises:
            TrainingError: the batch is another policy's, was already trained, or cannot give advantages.
        """
        if batch.policy != self._settings.policy:
            raise TrainingError(f"a batch of policy {batch.policy!r} came to the trainer of {self._settings.policy!r}")
        if batch.step <= self._steps_done:
            raise TrainingError(f"step {batch.step} is done already (the trainer is at step {self._steps_done})")
        began = time.perf_counter()
        learned = self._learner.learn(batch.samples, batch.step, batch.media)
        self._steps_done = batch.step
        return StepReport(
            step=batch.step,
            metrics=learned.metrics,
            advantages=learned.advantages,
            tokens_trained=learned.tokens_trained,
            tokens_computed=learned.tokens_computed,
            tokens_sequential=learned.tokens_sequential,
            seconds={"advantages": learned.prepare_s, "train": time.perf_counter() - began - learned.prepare_s},
        )

    def publish(self, path: Path, version: int) -> Publication:
        """Write the weights, or only the adapter, in the serving dtype, and score the probe with exactly those values.

        Raises:
            TrainingError: the file cannot be written.
        """
        settings = self._settings
        with self._as_served():
            tensors = self._exported()

        def write() -> tuple[str, int]:
            try:
                write_atomically(tensors, path)
                return file_checksum(path), len(tensors)
            except OSError as error:
                raise TrainingError(f"cannot write the weights of version {version} to {path}: {error}") from error

        checksum, count = on_first(write)
        return Publication(
            policy=settings.policy,
            version=version,
            path=str(path),
            checksum=checksum,
            tensor_count=count,
            dtype=settings.serving_dtype,
            probe=Probe(token_ids=self._probe_ids, logprobs=self.score(self._probe_ids)),
            tolerance=Tolerance(max_abs=settings.probe_max_abs, mean_abs=settings.probe_mean_abs),
            adapter=settings.lora and adapter_shape(self.module, settings.lora),
        )

    def score(self, token_ids: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        """Return ``log p(token | before it)`` in nats, for every token of each sequence except its first.

        Raises:
            TrainingError: a sequence has fewer than two tokens.
        """
        if short := [ids for ids in token_ids if len(ids) < 2]:
            raise TrainingError(f"cannot score the sequence {list(short[0])}: it needs two tokens or more")
        return self._learner.policy.score(token_ids)

    def save(self, directory: Path, step: int) -> None:
        """Write weights, optimizer, scheduler, and random state; ``directory`` is complete or absent.

        Its folder ``huggingface`` is the model in the serving dtype, loadable with transformers or vLLM; a LoRA policy
        has the folder ``adapter`` instead, loadable with PEFT or vLLM.

        Raises:
            CheckpointError: the disk could not be written.
        """
        checkpoint = writing(directory, self._manifest(step))
        with ExitStack() as whole:
            # The first process creates the folder and renames it when all have written their part.
            folder = on_first(lambda: whole.enter_context(checkpoint))
            with self._as_served():
                tensors = self._exported()
            # On another disk, a process writes its part where its own checkpoint would be.
            part = f".{directory.name}.{torch.distributed.get_rank()}.part"
            own = folder if folder.is_dir() else directory.with_name(part)
            try:
                self._learner.save(own, step)
                collect(folder, own)
            finally:
                if own != folder:
                    shutil.rmtree(own, ignore_errors=True)
            on_first(lambda: self._write_model(folder, tensors))
        on_first(lambda: None)  # wait until the first process has renamed it

    def _write_model(self, folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
        model = folder / "huggingface"
        if self._settings.lora is None:
            write_atomically(tensors, model / "model.safetensors")
            return
        shutil.rmtree(model)  # the configuration of a model whose weights are not here
        adapter = folder / "adapter"
        adapter.mkdir()
        write_atomically(tensors, adapter / ADAPTER_WEIGHTS)
        adapter_shape(self.module, self._settings.lora).write_config(adapter)

    def load(self, directory: Path) -> int:
        """Load a checkpoint and return its step.

        Raises:
            CheckpointError: it is incomplete or damaged; nothing has changed.
            TrainingError: it is another policy's, or another model's.
        """
        manifest = read_manifest(directory)
        if manifest.policy != self._settings.policy:
            raise TrainingError(
                f"{directory} is a checkpoint of policy {manifest.policy!r}, not of {self._settings.policy!r}"
            )
        own = self._manifest(manifest.step)
        if manifest.model not in ("", own.model):
            raise TrainingError(
                f"the checkpoint {directory} was trained from other weights than those of {self._settings.model_dir}; "
                f"go on with the model that it was written with, or {THE_WAY_ON}"
            )
        if manifest.weights not in ("", own.weights):
            raise TrainingError(
                f"the checkpoint {directory} holds {manifest.weights}, and the policy trains {own.weights}; go on with "
                f"the lora that it was written with, or {THE_WAY_ON}"
            )
        self._learner.load(directory, manifest.step)
        self._steps_done = manifest.step
        return manifest.step

    def _manifest(self, step: int) -> Manifest:
        settings, weights = self._settings, "all weights"
        if settings.lora is not None:
            shape = adapter_shape(self.module, settings.lora)
            weights = f"an adapter of rank {shape.rank}, alpha {shape.alpha}, on {', '.join(shape.target_modules)}"
        return Manifest(settings.policy, step, weights, self._model_mark, settings.training.device)

    def _as_served(self) -> AbstractContextManager[None]:
        """Return a context in which the model has the values that are published."""
        sharded = self._learner.policy.sharded  # other strategies keep parameters in verl's own form
        return rounded_weights(self.module, _TORCH_DTYPES[self._settings.serving_dtype]) if sharded else nullcontext()

    def _exported(self) -> dict[str, torch.Tensor]:
        dtype = _TORCH_DTYPES[self._settings.serving_dtype]
        if self._settings.lora is not None:
            return adapter_tensors(self.module, dtype)
        return self._learner.policy.exported(dtype)
