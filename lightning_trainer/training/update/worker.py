"""verl's TrainingWorker in this process: one model, its optimiser and the policy loss.

Only the worker is used, never verl's trainers, which own rollout servers of their own. A call of ``train`` is one
optimiser step over everything it is given, in as many micro-batches as the budget asks for.
"""

import contextlib
import logging
import math
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tensordict import TensorDict
from torch.distributed import HashStore
from torch.distributed.fsdp import FSDPModule
from transformers.utils.logging import disable_progress_bar
from verl.utils import tensordict_utils as tu
from verl.utils.metric import Metric
from verl.workers.engine_workers import TrainingWorker
from verl.workers.utils.losses import ppo_loss

from lightning_trainer.errors import TrainingError
from lightning_trainer.training.settings import TrainerSettings
from lightning_trainer.training.update import platform_cpu
from lightning_trainer.training.update.configuration import loss_config, worker_config
from lightning_trainer.training.update.mismatch import MeasuresMismatch
from lightning_trainer.training.update.tensors import scoring_tensors, training_tensors
from lightning_trainer.training.update.tree_engine import TREE, TreeEngine
from lightning_trainer.types import Sample

_log = logging.getLogger(__name__)

_ABOUT_GPUS = "perf/"
"""Prefix of verl's memory figures."""


class Update(NamedTuple):
    metrics: dict[str, float]
    """By verl's names; ``actor/update_skipped`` is 1.0 when the gradient was not finite and the weights were left."""
    tokens_computed: int


class UpdateWorker:
    """The weights of one policy and what changes them."""

    def __init__(self, settings: TrainerSettings) -> None:
        """Load the model.

        Raises:
            TrainingError: the model or the settings cannot be trained with.
        """
        self._budget = settings.max_tokens_per_micro_batch
        self._scheduled_steps = settings.total_steps if settings.schedule != "constant" else None
        torch.set_num_threads(settings.threads)
        random.seed(settings.seed)
        np.random.seed(settings.seed)
        torch.manual_seed(settings.seed)
        disable_progress_bar()
        _join_group_of_one()
        self._tree = settings.attention == "tree"
        platform_cpu.select_engine(TREE if self._tree else platform_cpu.STOCK)
        with _environment_of_rank_zero(), contextlib.redirect_stdout(_LogWriter()):  # pyright: ignore[reportArgumentType]
            self._worker = TrainingWorker(worker_config(settings))
            self._worker.reset()
        self._worker.set_loss_fn(MeasuresMismatch(partial(ppo_loss, config=loss_config(settings))))
        self.engine: Any = self._worker.engine
        """verl's, for those who must look inside."""
        if isinstance(self.engine, TreeEngine) != self._tree:
            raise TrainingError(f"verl chose {type(self.engine).__name__} for attention {settings.attention!r}")

    @property
    def module(self) -> torch.nn.Module:
        return self.engine.module

    @property
    def vocabulary_size(self) -> int:
        return self.engine.module.config.vocab_size

    def train(self, samples: Sequence[Sample], advantages: Mapping[str, Sequence[float]]) -> Update:
        """Take one optimiser step.

        Args:
            samples: each with at least one trained token.
            advantages: by sample id, one value a token.
        """
        tensors = training_tensors(samples, advantages)
        lengths = [len(sample.token_ids) for sample in samples]
        tu.assign_non_tensor(
            tensors, max_token_len_per_gpu=max(self._budget, *lengths), update_lr_scheduler=self._schedule_goes_on()
        )
        lr = self.engine.lr_scheduler.get_last_lr()[0]  # verl reports the next step's
        metrics = {**_flat_metrics(tu.get(self._worker.train_batch(tensors), "metrics")), "lr": lr}
        return Update(metrics, self.engine.tokens_computed if self._tree else sum(lengths))

    def _schedule_goes_on(self) -> bool:
        """verl's cosine would climb again after its last step."""
        return self._scheduled_steps is None or self.engine.lr_scheduler.last_epoch < self._scheduled_steps

    def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
        """Return what ``train`` would compute: per sample one value a token, nats, 0.0 where the loss mask is 0."""
        nothing = {sample.sample_id: [0.0] * len(sample.token_ids) for sample in samples}
        tensors = training_tensors(samples, nothing)
        longest = max(len(sample.token_ids) for sample in samples)
        return [
            [0.0, *(value * bit for value, bit in zip(row[:-1], sample.loss_mask[1:], strict=True))]
            for row, sample in zip(self._infer(tensors, longest), samples, strict=True)
        ]

    def score(self, sequences: Sequence[Sequence[int]]) -> tuple[tuple[float, ...], ...]:
        """Return ``log p(token | before it)``, nats, for every token of each sequence (2 or more) but its first."""
        tensors = scoring_tensors(sequences)
        return tuple(tuple(row[:-1]) for row in self._infer(tensors, max(map(len, sequences))))

    def _infer(self, tensors: TensorDict, longest: int) -> list[list[float]]:
        """Slot ``t`` of a row is the log-probability of token ``t + 1``."""
        tu.assign_non_tensor(tensors, compute_loss=False, max_token_len_per_gpu=max(self._budget, longest))
        found = tu.get(self._worker.infer_batch(tensors), "log_probs")
        self._forget_gathered_weights()
        return [row.tolist() for row in found.unbind()]

    def _forget_gathered_weights(self) -> None:
        """A forward pass without a backward pass leaves FSDP's gathered copies: later changes would not be seen."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def save(self, folder: Path, step: int) -> None:
        """Write weights, optimiser, schedule, random state, and the configuration and tokenizer for transformers."""
        self._worker.save_checkpoint(str(folder), global_step=step)
        for made in (folder, folder / "huggingface"):
            # verl leaves the lock under which it made a folder; this is its name for it.
            lock = Path(tempfile.gettempdir(), f"ckpt_{hash(str(made)) & 0xFFFFFFFF:08x}.lock")
            lock.unlink(missing_ok=True)

    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote.

        Raises:
            TrainingError: it is damaged or of another model.
        """
        try:
            self._worker.load_checkpoint(str(folder))
        except (RuntimeError, OSError, KeyError, ValueError) as error:
            raise TrainingError(f"cannot load the checkpoint {folder}: {error}") from error


def _join_group_of_one() -> None:
    """Start the process group in memory: no port is opened, so none can be taken.

    verl would ask for "cpu:gloo,cpu:gloo", which torch refuses as a duplicate; it leaves an existing group alone.
    """
    if not torch.distributed.is_initialized():
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.distributed.init_process_group("cpu:gloo", store=HashStore(), rank=0, world_size=1)


@contextlib.contextmanager
def _environment_of_rank_zero() -> Iterator[None]:
    """What verl's worker reads while it is built, taken back after: no child process must take it for its own."""
    before = dict(os.environ)
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update(before)


class _LogWriter:
    """Where verl's prints go while it builds a model."""

    def write(self, text: str) -> int:
        if text.strip():
            _log.debug("%s", text.strip())
        return len(text)

    def flush(self) -> None:
        """Records are not buffered."""


def _flat_metrics(metrics: Mapping[str, Any]) -> dict[str, float]:
    flat = {name: _number(value) for name, value in metrics.items() if not name.startswith(_ABOUT_GPUS)}
    skipped = not math.isfinite(flat.get("grad_norm", 0.0))
    if skipped:
        _log.warning("the gradient is not finite: the weights were left as they are")
    finite = {name: value for name, value in flat.items() if math.isfinite(value)}
    return {**finite, "actor/update_skipped": float(skipped)}


def _number(value: Any) -> float:
    if isinstance(value, Metric):
        return float(value.aggregate())
    if isinstance(value, list):
        return sum(_number(item) for item in value) / len(value)
    return float(value)
