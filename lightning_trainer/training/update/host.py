"""One model in verl's TrainingWorker: built, run forward, saved. Policy, reference, and critic are one each.

Only the worker is used, never verl's trainers, which own rollout servers of their own.
"""

import contextlib
import io
import logging
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from transformers.utils.logging import disable_progress_bar
from verl.utils import tensordict_utils as tu
from verl.workers.config import TrainingWorkerConfig
from verl.workers.engine_workers import TrainingWorker

from lightning_trainer.errors import TrainingError
from lightning_trainer.training import process_group
from lightning_trainer.training.checkpoint_folder import require_written_by
from lightning_trainer.training.device import chosen
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update.adapter_weights import without_adapter
from lightning_trainer.training.update.batch.images import image_inputs
from lightning_trainer.training.update.batch.packed import Share
from lightning_trainer.training.update.batch.tensors import scoring_tensors, training_tensors
from lightning_trainer.training.update.configuration import with_stock_precision
from lightning_trainer.training.update.engines import stock as _  # registers it with verl  # noqa: F401
from lightning_trainer.training.update.engines.registration import STOCK, TREE, engines_of, require_strategy
from lightning_trainer.training.update.engines.tree import TreeEngine
from lightning_trainer.training.update.engines.tree_limits import TreeRefusedError
from lightning_trainer.training.update.metrics import Update, flat_metrics
from lightning_trainer.training.update.rounding import forget_gathered
from lightning_trainer.types import Sample

_log = logging.getLogger(__name__)

_UNREADABLE = (RuntimeError, OSError, KeyError, ValueError, EOFError, UnpicklingError, AttributeError, TypeError)
"""What torch raises for files that are damaged (cut short, empty, of another kind) or of another model."""
_FLAGS = {"entropy": "calculate_entropy", "sum_pi_squared": "calculate_sum_pi_squared"}
"""What verl's engines compute only on request, with the flag that requests it."""


class ModelHost:
    """A model that can be run; not thread-safe."""

    replays_experts = False
    """Whether it takes the recorded experts: only the model that sampled does, and only if its routers can be told."""

    def __init__(self, settings: TrainerSettings, model: "TrainingWorkerConfig | ModelHost") -> None:
        """Load the model.

        Args:
            model: what to load, or a host that has already loaded it and shares it.

        Raises:
            TrainingError: it cannot be used.
        """
        self.budget = settings.training.max_tokens_per_micro_batch
        optimizer = settings.optimizer
        self._scheduled_steps = optimizer.total_steps if optimizer.schedule != "constant" else None
        self._warmup_steps = optimizer.warmup_steps
        self._adamw = {"weight_decay": optimizer.weight_decay, "betas": optimizer.betas}
        self._lr = optimizer.lr
        """The learning rate of the stage."""
        self._loss: Any = None
        """verl's loss function; None if the model is not trained."""
        if isinstance(model, ModelHost):
            self._name, self.sharded, self.tree = model._name, model.sharded, model.tree
            self.worker, self.engine, self.images = model.worker, model.engine, model.images
        else:
            self._load(settings, model)

    def _load(self, settings: TrainerSettings, config: TrainingWorkerConfig) -> None:
        self._name = "critic" if config.model_type == "value_model" else "actor"
        _seed(settings.training.seed)
        disable_progress_bar()
        process_group.join_alone()
        self.sharded = settings.training.strategy == "fsdp2"
        """Whether it is a module of transformers, sharded by FSDP2; with other strategies only verl knows its form."""
        require_strategy(settings.training.strategy, config.model_type, settings.training.device)
        self.images = image_inputs(Path(config.model_config.path), settings)
        """Prepares its images; None if it reads none."""
        self.tree = settings.training.attention != "stock" and self.sharded
        """Whether what samples share is computed once."""
        try:
            self._build(config)
            return
        except TreeRefusedError as refusal:
            if settings.training.attention != "auto":
                raise
            _log.warning(
                "verl's own engine computes %s, what samples share again for each: the tree engine does not support %s",
                config.model_config.local_path,
                refusal.what,
            )
        self.tree = False
        self._build(with_stock_precision(config, settings))

    def _build(self, config: TrainingWorkerConfig) -> None:
        scores = self.sharded and not self.tree and config.model_type == "language_model"
        if scores and chosen() == "cuda" and find_spec("flash_attn") is None:
            _log.warning(
                "without the package flash-attn, verl's own engine computes log-probabilities token by token (0.2 ms "
                "each on an H100) and attends over padded samples: install it"
            )
        vendor = engines_of(TREE if self.tree else STOCK)
        with vendor, _environment_of_rank(), contextlib.redirect_stdout(LogWriter()):
            self.worker = TrainingWorker(config)
            self.worker.reset()
        self.engine: Any = self.worker.engine
        """verl's engine, for code that must look inside."""
        if isinstance(self.engine, TreeEngine) != self.tree:
            raise TrainingError(f"verl chose {type(self.engine).__name__} where tree = {self.tree}")
        if self.tree:  # only a run shows whether every layer attends along the tree
            self.infer(scoring_tensors([[0, 0]]), 2, "values" if config.model_type == "value_model" else "log_probs")

    @property
    def module(self) -> torch.nn.Module:
        """Return the model; of a model in parts, the part of this process."""
        return self.engine.module

    def _schedule_goes_on(self) -> bool:
        """Whether the learning rate's schedule still advances: verl's cosine would rise again after its last step."""
        if not self.sharded:
            return True
        return self._scheduled_steps is None or self.engine.lr_scheduler.last_epoch < self._scheduled_steps

    def measure(
        self, samples: Sequence[Sample], *names: str, adapter: bool = True, replay: bool = True
    ) -> dict[str, dict[str, list[float]]]:
        """Run the model over samples and return what is asked for at every trained token, 0.0 elsewhere.

        Args:
            names: verl's: ``log_probs`` of the tokens (nats), ``entropy`` and ``sum_pi_squared`` of the distributions
                that they were drawn from, ``values`` before them.
            adapter: whether a LoRA adapter is used; without it the model is what the run started from.
            replay: whether recorded experts, which are those of the model that sampled, are used if possible.

        Returns:
            By name and sample id, one value per token.
        """
        replays = self.replays_experts and adapter and replay
        tensors = training_tensors(samples, {}, experts=replays, images=self.images)
        longest = max(len(sample.token_ids) for sample in samples)
        found = self.infer(tensors, longest, *names, adapter=adapter)
        return {
            name: {
                sample.sample_id: [
                    0.0,
                    *(value * bit for value, bit in zip(row[:-1], sample.loss_mask[1:], strict=True)),
                ]
                for row, sample in zip(rows, samples, strict=True)
            }
            for name, rows in found.items()
        }

    def infer(
        self, tensors: TensorDict, longest: int, *names: str, adapter: bool = True
    ) -> dict[str, list[list[float]]]:
        """Run the model and return, by name, a row per sequence; slot ``t`` of a row is of token ``t + 1``."""
        tu.assign_non_tensor(tensors, compute_loss=False, max_token_len_per_gpu=max(self.budget, longest))
        tu.assign_non_tensor(tensors, **{_FLAGS[name]: True for name in names if name in _FLAGS})
        share = Share(tensors, tree=self.tree)
        with nullcontext() if adapter else without_adapter(self.module):
            output = self.worker.infer_batch(share.batch)
        if self.sharded:
            forget_gathered(self.module)
        return share.of_all({name: [row.tolist() for row in tu.get(output, name).unbind()] for name in names})

    def update(self, tensors: TensorDict, lengths: Sequence[int], *, last: bool) -> Update:
        """Take one optimizer step.

        Args:
            tensors: the whole group's mini-batch; each process trains its share.
            lengths: tokens of each of its sequences.
            last: whether it is the step's last update; the learning rate's schedule counts steps, as verl's does.
        """
        tu.assign_non_tensor(
            tensors,
            max_token_len_per_gpu=max(self.budget, *lengths),
            update_lr_scheduler=last and self._schedule_goes_on(),
        )
        self.worker.set_loss_fn(self._loss)
        output = self.worker.train_batch(Share(tensors, tree=self.tree).batch)
        computed = sum(process_group.gathered(self.engine.tokens_computed)) if self.tree else sum(lengths)
        return Update(flat_metrics(tu.get(output, "metrics"), self._name), computed)

    def save(self, folder: Path, step: int) -> None:
        """Write weights, optimizer, schedule, random state, and the configuration and tokenizer for transformers.

        Raises:
            TrainingError: the disk could not be written.
        """
        try:
            self.worker.save_checkpoint(str(folder), global_step=step)  # returns when all processes have written
        except (RuntimeError, OSError) as error:  # torch's writer raises the former on a full disk
            raise TrainingError(f"cannot write the checkpoint {folder}: {error}") from error
        for made in (folder, folder / "huggingface"):
            # verl leaves behind the lock under which it made a folder; this is how it names it.
            lock = Path(tempfile.gettempdir(), f"ckpt_{hash(str(made)) & 0xFFFFFFFF:08x}.lock")
            lock.unlink(missing_ok=True)

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            TrainingError: it is damaged, of another model, another number of processes, or another kind of device.
        """
        if self.sharded:
            require_written_by(folder, torch.distributed.get_world_size(), chosen())
        try:
            self.worker.load_checkpoint(str(folder))
        except _UNREADABLE as error:
            # torch names every tensor that does not fit, in a line each.
            raise TrainingError(f"cannot load the checkpoint {folder}: {shorten(str(error), 300)}") from error
        self._take_settings()

    def _take_settings(self) -> None:
        """Give AdamW the current settings: loading a checkpoint restores those that it was written with."""
        for group in self.engine.optimizer.param_groups if self.sharded else ():
            group.update(self._adamw)

    def _set_learning_rate(self) -> None:
        """Set the learning rate before every step: a checkpoint brings that of its own stage and settings, and verl's
        warm-up begins with a rate of 0, at which a step trains nothing."""
        if not self.sharded:
            return  # one stage, one rate (``strategies``)
        schedule = self.engine.lr_scheduler
        schedule.base_lrs = [self._lr] * len(schedule.base_lrs)
        done = min(schedule.last_epoch, self._scheduled_steps or schedule.last_epoch)
        warm = (done + 1) / (self._warmup_steps + 1) if done < self._warmup_steps else None
        rates = [self._lr * (share(done) if warm is None else warm) for share in schedule.lr_lambdas]
        for group, rate in zip(self.engine.optimizer.param_groups, rates, strict=True):
            group["lr"], group["initial_lr"] = rate, self._lr
        schedule._last_lr = rates


def _seed(seed: int) -> None:
    """Seed all generators, so that what a model draws while it is built depends only on the seed."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def _environment_of_rank() -> Iterator[None]:
    """Set what verl's worker reads while it is built, and restore it after: no child process must inherit it."""
    before = dict(os.environ)
    rank, processes = torch.distributed.get_rank(), torch.distributed.get_world_size()
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(processes), LOCAL_RANK="0")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")  # unused: the group already exists
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


class LogWriter(io.TextIOBase):
    """Where verl's prints go while it builds a model."""

    def write(self, text: str) -> int:
        if text.strip():
            _log.debug("%s", text.strip())
        return len(text)
