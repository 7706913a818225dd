"""What the engine was started with, and the checks of a publication that do not touch it."""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.serving.host.probe import probe_scoring as scoring
from lightning_trainer.serving.host.settings import HostSettings
from lightning_trainer.serving.host.weights.weight_file import (
    TensorHeader,
    disagreement,
    model_files,
    model_headers,
    read_header,
    ties_embeddings,
)
from lightning_trainer.serving.publication import Publication, PublicationReport
from lightning_trainer.serving.shared_memory import file_checksum


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The model folder that the engine was started with: version 0 of every policy that it serves."""

    policies: tuple[str, ...]
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorHeader]
    tied: bool
    dtype: str
    vocabulary: int
    max_model_len: int
    lora_rank: int | None
    """The largest rank of an adapter; None: publications contain all weights."""

    def scoring_refusal(self, token_ids: Any) -> str | None:
        """Return why the sequences cannot be scored, or None."""
        return scoring.refusal(token_ids, vocabulary=self.vocabulary, max_model_len=self.max_model_len)

    def refusal(self, publication: Publication, path: Path) -> str | None:
        """Return why a publication cannot be served, or None.

        Args:
            path: its file, or a copy of it.
        """
        if publication.policy not in self.policies:
            return f"the policy is {publication.policy!r}; this engine serves {', '.join(map(repr, self.policies))}"
        if (reason := self._kind_refusal(publication)) is not None:
            return reason
        if publication.dtype != self.dtype:
            return f"the publication is {publication.dtype}; the engine computes in {self.dtype}"
        try:
            if (checksum := file_checksum(path)) != publication.checksum:
                return f"{path.name} has the checksum {checksum}; the trainer wrote {publication.checksum}"
            headers = read_header(path)
        except (OSError, ValueError) as error:
            return f"the weights cannot be read: {error}"
        if len(headers) != publication.tensor_count:
            return f"{path.name} holds {len(headers)} tensors; the trainer wrote {publication.tensor_count}"
        tied = self.tied and publication.adapter is None
        if (reason := disagreement(headers, self._expected(publication), self.dtype, tied=tied)) is not None:
            return f"{path.name}: {reason}"
        if (reason := self.scoring_refusal(publication.probe.token_ids)) is not None:
            return f"the probe cannot be scored: {reason}"
        return None

    def _kind_refusal(self, publication: Publication) -> str | None:
        adapter = publication.adapter
        if adapter is None:
            return "it holds all weights, and this engine serves adapters" if self.lora_rank is not None else None
        if self.lora_rank is None:
            return "it is an adapter, and this engine was started for publications of all weights"
        if adapter.rank > self.lora_rank:
            return f"the adapter has rank {adapter.rank}; this engine was started for {self.lora_rank} at most"
        return None

    def _expected(self, publication: Publication) -> Mapping[str, TensorHeader]:
        if publication.adapter is None:
            return self.tensors
        shapes = publication.adapter.tensor_shapes({name: header.shape for name, header in self.tensors.items()})
        return {name: TensorHeader(self.dtype, shape) for name, shape in shapes.items()}


def served_model(settings: HostSettings, engine: Any) -> ServedModel:
    """Read the served model from its folder and from the started engine."""
    folder = Path(settings.model)
    return ServedModel(
        policies=settings.policies,
        files=tuple(model_files(folder)),
        tensors=model_headers(folder),
        tied=ties_embeddings(folder),
        dtype=str(engine.model_config.dtype).removeprefix("torch."),
        vocabulary=engine.model_config.get_vocab_size(),
        max_model_len=engine.model_config.max_model_len,
        lora_rank=settings.lora_rank,
    )


# What both kinds of publishers say about a publication.

logger = logging.getLogger(__name__)


def outside(path: Path, weights_directory: Path) -> str | None:
    """Return why a file may not be read, or None if it is below the folder."""
    if weights_directory not in path.resolve().parents:
        return f"{path} is outside of {weights_directory}, where this engine reads weights"
    return None


def refused(version: int, reason: str | None, started: float) -> PublicationReport:
    """Report that nothing changed; ``version`` is served as before."""
    return PublicationReport(False, version, reason, seconds={"total": time.monotonic() - started})


def log_outcome(publication: Publication, report: PublicationReport) -> None:
    """Log that a publication is served, or why it is not."""
    if report.accepted:
        logger.info("serving %s, max |difference| %.3g nats", publication.name, report.max_abs_diff)
    else:
        logger.warning("refused %s, serving version %d: %s", publication.name, report.version, report.reason)
