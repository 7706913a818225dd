"""A policy version on its way from the trainer to the engine, and the engine's report on it.

Invariant: a publication carries everything that its receiver needs to prove it: the file's checksum (did the bytes
arrive?) and a probe that the trainer scored with the very values in the file (are they what is now served?). Standard
library only, because trainer, daemon, and engine may run in three different environments.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving.adapter import AdapterShape

_HEX_128 = re.compile(r"[0-9a-f]{32}")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far trainer and engine may differ on the probe, in nats. Both limits must hold."""

    max_abs: float
    mean_abs: float

    def __post_init__(self) -> None:
        for name, bound in (("max_abs", self.max_abs), ("mean_abs", self.mean_abs)):
            if not (_is_number(bound) and bound > 0):
                raise PublicationError(f"tolerance: {name} is {bound!r}; it must be a positive number of nats")


@dataclass(frozen=True, slots=True)
class Probe:
    """Fixed sequences and the trainer's logprobs of them: ``logprobs[s][i] = log p(token_ids[s][i+1] | before it)``.

    Use the same sequences for every version of a policy: only then can a version that never arrived be distinguished
    from one that changed little.
    """

    token_ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        if not self.token_ids or len(self.token_ids) != len(self.logprobs):
            raise PublicationError(
                f"probe: {len(self.token_ids)} sequences and {len(self.logprobs)} rows of logprobs; "
                "there must be one row a sequence and at least one of them"
            )
        for index, (ids, logprobs) in enumerate(zip(self.token_ids, self.logprobs, strict=True)):
            if len(ids) < 2 or len(logprobs) != len(ids) - 1:
                raise PublicationError(
                    f"probe: sequence {index} has {len(ids)} tokens and {len(logprobs)} logprobs; "
                    "n tokens (2 or more) have n - 1 logprobs"
                )
            for token in ids:
                if not isinstance(token, int) or isinstance(token, bool) or token < 0:
                    raise PublicationError(f"probe: sequence {index} holds {token!r}; token ids are integers from 0")
            for logprob in logprobs:
                if not _is_number(logprob) or logprob > 0:
                    raise PublicationError(
                        f"probe: sequence {index} has the log-probability {logprob!r}; it must be finite and at most 0"
                    )

    @property
    def positions(self) -> int:
        """Return the number of scored tokens."""
        return sum(len(row) for row in self.logprobs)


@dataclass(frozen=True, slots=True)
class Publication:
    """The immutable values of one policy version, ready to be served."""

    policy: str
    version: int
    path: str
    """Safetensors file, in shared memory if possible; absolute."""
    checksum: str
    """``serving.shared_memory.file_checksum`` of the whole file."""
    tensor_count: int
    dtype: str
    """The dtype of every tensor in the file: the engine's own, so that loading rounds nothing."""
    probe: Probe
    tolerance: Tolerance
    adapter: AdapterShape | None = None
    """The adapter's shape, if the file contains only an adapter's matrices; None: it contains all weights."""

    def __post_init__(self) -> None:
        if not isinstance(self.policy, str) or not self.policy:
            raise PublicationError(f"publication: policy is {self.policy!r}; it needs a name")
        if not isinstance(self.version, int) or isinstance(self.version, bool) or self.version < 0:
            raise PublicationError(f"publication of {self.policy}: version is {self.version!r}; it counts from 0")
        where = f"publication {self.policy}@v{self.version}"
        if not isinstance(self.path, str) or not self.path.startswith("/"):
            raise PublicationError(f"{where}: path is {self.path!r}; it must be absolute")
        if not isinstance(self.checksum, str) or not _HEX_128.fullmatch(self.checksum):
            raise PublicationError(f"{where}: checksum is {self.checksum!r}; it must be 32 lower-case hex digits")
        if not isinstance(self.tensor_count, int) or self.tensor_count < 1:
            raise PublicationError(f"{where}: tensor_count is {self.tensor_count!r}; it must be 1 or more")
        if self.dtype not in DTYPES:
            raise PublicationError(f"{where}: dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")

    @property
    def name(self) -> str:
        """Return ``<policy>@v<version>``."""
        return f"{self.policy}@v{self.version}"

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict; ``from_json`` returns an equal publication (floats are exact)."""
        return {
            "policy": self.policy,
            "version": self.version,
            "path": self.path,
            "checksum": self.checksum,
            "tensor_count": self.tensor_count,
            "dtype": self.dtype,
            "probe": {
                "token_ids": [list(ids) for ids in self.probe.token_ids],
                "logprobs": [list(row) for row in self.probe.logprobs],
            },
            "tolerance": {"max_abs": self.tolerance.max_abs, "mean_abs": self.tolerance.mean_abs},
            "adapter": self.adapter and self.adapter.to_json(),
        }

    @classmethod
    def from_json(cls, document: Any) -> "Publication":
        """Read what ``to_json`` wrote, here or in a newer release; unknown fields are ignored.

        Raises:
            PublicationError: a field is missing, or not what it must be; the message names it.
        """
        if isinstance(document, Mapping):
            document = {"adapter": None, **document}  # documents stored by versions before adapters lack the key
        fields = _fields(document, "publication", cls)
        probe = _fields(fields["probe"], "probe", Probe)
        fields["probe"] = Probe(
            token_ids=_rows(probe["token_ids"], "probe.token_ids"), logprobs=_rows(probe["logprobs"], "probe.logprobs")
        )
        fields["tolerance"] = Tolerance(**_fields(fields["tolerance"], "tolerance", Tolerance))
        if (adapter := fields["adapter"]) is not None:
            adapter = _fields(adapter, "adapter", AdapterShape)
            modules = adapter["target_modules"]
            fields["adapter"] = AdapterShape(
                **{**adapter, "target_modules": tuple(modules) if _is_list(modules) else modules}
            )
        return cls(**fields)


@dataclass(frozen=True, slots=True)
class PublicationReport:
    """The result of a publication. ``None`` means that a value was not measured."""

    accepted: bool
    version: int
    """The version that is served now: the published one, or the one before it."""
    reason: str | None = None
    """Why it was refused."""
    max_abs_diff: float | None = None
    mean_abs_diff: float | None = None
    movement: float | None = None
    """The engine's movement on the probe per unit of the trainer's since the previous version: 1 loaded, 0 stale."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """gate (waiting for running requests), update, probe, total."""

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able dict, which ``from_json`` reads."""
        return {
            "accepted": self.accepted,
            "version": self.version,
            "reason": self.reason,
            "max_abs_diff": self.max_abs_diff,
            "mean_abs_diff": self.mean_abs_diff,
            "movement": self.movement,
            "seconds": dict(self.seconds),
        }

    @classmethod
    def from_json(cls, document: Any) -> "PublicationReport":
        """Read what ``to_json`` wrote, here or in a newer release.

        Raises:
            PublicationError: a field is missing.
        """
        return cls(**_fields(document, "publication report", cls))


def _fields(document: Any, what: str, record: type) -> dict[str, Any]:
    """Return the record's fields, which the document must have; fields that a newer release added are ignored."""
    if not isinstance(document, Mapping):
        raise PublicationError(f"{what} is {type(document).__name__}; it must be a JSON object")
    known = record.__dataclass_fields__
    if missing := known.keys() - set(document):
        raise PublicationError(f"{what} lacks {', '.join(sorted(missing))}")
    return {name: document[name] for name in known}


def _rows(value: Any, what: str) -> tuple[tuple[Any, ...], ...]:
    if not _is_list(value) or not all(_is_list(row) for row in value):
        raise PublicationError(f"{what} must be a list of lists")
    return tuple(tuple(row) for row in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
