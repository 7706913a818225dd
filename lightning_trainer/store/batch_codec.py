"""TrainingBatch and StepReport <-> bytes: zlib (level 1) over JSON with a format number. No pickle.

Invariant: decoding returns an equal value, floats to the last bit (JSON carries their shortest exact form), so that a
step that is repeated after a crash trains on exactly what was recorded. Bytes are base64 text. NaN and infinity have no
JSON form and are refused in a batch; in a report's metrics they are stored as text.
"""

import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import orjson

from lightning_trainer.errors import StoreError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.token_ids import TokenIds
from lightning_trainer.types import Gap, Media, Sample, Segment, StepReport, TrainingBatch

_FORMAT = 1
_SAMPLE_FIELDS = tuple(field.name for field in fields(Sample))
_WRITTEN_AS = {"behavior_logprobs": "behaviour_logprobs"}


def encode_batch(batch: TrainingBatch) -> bytes:
    """Serialize a batch.

    Raises:
        StoreError: a logprob, credit, baseline, or logit bias is NaN or infinite; training on it would ruin the
            weights.
    """
    for sample in batch.samples:
        if not all(map(math.isfinite, _floats(sample))):
            raise StoreError(
                f"step {batch.step} of policy {batch.policy!r}: sample {sample.sample_id} has a log-probability, "
                "credit, baseline or logit bias that is NaN or infinite; drop the sample with that reason"
            )
    written = {
        "policy": batch.policy,
        "step": batch.step,
        "samples": list(map(_written, batch.samples)),
        "made_for": dict(batch.made_for),
    }
    return _pack({"format": _FORMAT, "batch": written})


def decode_batch(body: bytes) -> TrainingBatch:
    """Read what :func:`encode_batch` wrote."""
    batch = _unpack(body)["batch"]
    return TrainingBatch(
        policy=batch["policy"],
        step=batch["step"],
        samples=tuple(_sample(sample) for sample in batch["samples"]),
        made_for=batch.get("made_for", {}),
    )


def encode_report(report: StepReport) -> bytes:
    """Serialize a step's report: the small fields first, then the advantages, which few readers need."""
    small = {
        "step": report.step,
        "metrics": _writable_metrics(report.metrics),
        "tokens_trained": report.tokens_trained,
        "tokens_computed": report.tokens_computed,
        "tokens_sequential": report.tokens_sequential,
        "seconds": dict(report.seconds),
        "settings": dict(report.settings),
    }
    return _pack({"format": _FORMAT, "report": small}) + _pack(
        {"format": _FORMAT, "advantages": dict(report.advantages)}
    )


def decode_report(body: bytes, *, advantages: bool = True) -> StepReport:
    """Read what :func:`encode_report` wrote; with ``advantages`` false, the advantages are left empty and not decoded.

    Old reports have everything in one part.
    """
    small = zlib.decompressobj()
    report = _read(small.decompress(body) + small.flush())["report"]
    given = report.get("advantages", {})
    if advantages and small.unused_data:
        given = _unpack(small.unused_data)["advantages"]
    return StepReport(
        step=report["step"],
        metrics=_readable_metrics(report["metrics"]),
        advantages={sample_id: tuple(values) for sample_id, values in given.items()} if advantages else {},
        tokens_trained=report["tokens_trained"],
        tokens_computed=report["tokens_computed"],
        tokens_sequential=report["tokens_sequential"],
        seconds=report["seconds"],
        settings=report.get("settings", {}),
    )


def without_advantages(body: bytes) -> bytes:
    """Return an encoded report without its advantages, which are most of it."""
    return encode_report(decode_report(body, advantages=False))


def encode_metrics(metrics: Mapping[str, float]) -> str:
    """Return metrics as JSON text."""
    return orjson.dumps(_writable_metrics(metrics)).decode()


def decode_metrics(text: str) -> dict[str, float]:
    """Read what :func:`encode_metrics` wrote."""
    return _readable_metrics(orjson.loads(text))


def _written(sample: Sample) -> dict[str, Any]:
    """Return a sample with the field names of format 1, one of which has British spelling."""
    return {_WRITTEN_AS.get(name, name): getattr(sample, name) for name in _SAMPLE_FIELDS}


def _pack(document: dict[str, Any]) -> bytes:
    return zlib.compress(orjson.dumps(document, default=_plain), level=1)


def _plain(value: object) -> tuple[int, ...] | str:
    if isinstance(value, TokenIds):
        return tuple(value)
    if isinstance(value, bytes):
        return b64encode(value).decode()
    raise TypeError(type(value))


def _unpack(body: bytes) -> dict[str, Any]:
    return _read(zlib.decompress(body))


def _read(text: bytes) -> dict[str, Any]:
    document = orjson.loads(text)
    if document["format"] != _FORMAT:
        raise StoreError(
            f"a stored batch has format {document['format']}, this lightning-trainer reads {_FORMAT}: upgrade it"
        )
    return document


def _floats(sample: Sample) -> Iterator[float]:
    yield from sample.behavior_logprobs
    for segment in sample.segments:
        if segment.credit is not None:
            yield segment.credit
        if segment.shaping is not None:
            yield from (bias for _, bias in segment.shaping.logit_bias)
    yield from (gap.credit for gap in sample.gaps)
    if sample.baseline is not None:
        yield sample.baseline


def _writable_metrics(metrics: Mapping[str, float]) -> dict[str, float | str]:
    return {name: float(value) if math.isfinite(value) else repr(float(value)) for name, value in metrics.items()}


def _readable_metrics(metrics: Mapping[str, float | str]) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _sample(sample: dict[str, Any]) -> Sample:
    return Sample(
        sample_id=sample["sample_id"],
        policy=sample["policy"],
        agent=sample["agent"],
        group_id=sample["group_id"],
        attempt_id=sample["attempt_id"],
        token_ids=tuple(sample["token_ids"]),
        loss_mask=tuple(sample["loss_mask"]),
        behavior_logprobs=tuple(sample["behaviour_logprobs"]),
        segments=tuple(map(_segment, sample["segments"])),
        temperature=sample.get("temperature", 1.0),  # absent in batches of version 0.1.0
        media=tuple(Media(**media) for media in sample.get("media", ())),
        baseline=sample.get("baseline"),
        gaps=tuple(Gap(**gap) for gap in sample.get("gaps", ())),
    )


def _segment(segment: dict[str, Any]) -> Segment:
    """Read a segment. Those of version 0.1.0 have neither shaping nor support, and most have no experts."""
    shaping, support, experts = (segment.get(name) for name in ("shaping", "support", "routed_experts"))
    if shaping is not None:
        biases = tuple((token_id, bias) for token_id, bias in shaping["logit_bias"])
        segment["shaping"] = Shaping(**{**shaping, "logit_bias": biases})
    if support is not None:
        patterns = tuple(map(b64decode, support["patterns"]))
        segment["support"] = Support(support["vocabulary"], patterns, tuple(support["pattern_L"]))
    if experts is not None:
        segment["routed_experts"] = RoutedExperts(**{**experts, "ids": b64decode(experts["ids"])})
    return Segment(**segment)
