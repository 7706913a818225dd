"""Rollouts identified by URL alone: ``/rollouts/{id}/v1`` and ``/rollouts/{id}/agents/{agent}/v1``.

Any program that can set a base URL can take part, in any language. The id names the rollout and its only attempt. The
ids of the attempt's root span are derived from it, so calls can be recorded as its children before it exists. Settings
of the rollout may precede ``/v1``: ``/rollouts/{id}/with/temperature=0.7&metadata.split=train/v1``.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

DEFAULT_AGENT = "default"
"""The agent's name if the URL has none; a policy that should train it must list it."""
BASES = (
    "/v1",
    # The first match wins: the most specific ones come first.
    "/rollouts/{rollout_id:path}/agents/{agent:path}/with/{settings:path}/v1",
    "/rollouts/{rollout_id:path}/agents/{agent:path}/v1",
    "/rollouts/{rollout_id:path}/with/{settings:path}/v1",
    "/rollouts/{rollout_id:path}/v1",
)
"""Base URLs of all calls, in the web framework's path syntax."""
SAMPLING = {
    "temperature": float,
    "top_p": float,
    "top_k": int,
    "min_p": float,
    "seed": int,
    "max_tokens": int,
    "min_tokens": int,
    "frequency_penalty": float,
    "presence_penalty": float,
    "repetition_penalty": float,
}
"""The request parameters that a URL may set, with their types."""
METADATA = "metadata."
CAPTURE_CONTENT = "capture_content"
_LONGEST = 256
_LONGEST_VALUE = 1024
_MOST_METADATA = 32
_ENCODED = re.compile(rb"/rollouts/([^/]+)(?:/agents/([^/]+))?(?:/with/([^/]+))?/(?:v1/.*|reward|end)")
_WORDS = ("/agents/", "/with/")
_PARTS = ("rollout_id", "agent", "settings")


@dataclass(frozen=True, slots=True)
class RolloutUrl:
    """The parts of a rollout's URL. Raises ValueError for a name that is too long or has unprintable characters."""

    rollout_id: str
    agent: str = DEFAULT_AGENT
    sampling: Mapping[str, float] = field(default_factory=dict)
    """Overrides the program's parameters."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    capture_content: bool = True
    """False: its calls are recorded without texts."""

    def __post_init__(self) -> None:
        for what, name in (("rollout id", self.rollout_id), ("agent name", self.agent)):
            if not 0 < len(name) <= _LONGEST or not name.isprintable() or name != name.strip() or name in (".", ".."):
                shown = name if len(name) <= _LONGEST else f"{name[:64]}..."
                raise ValueError(
                    f"{what} {shown!r} in the URL: use 1 to {_LONGEST} printable characters, percent-encoded where a "
                    "URL wants it, without a space at either end"
                )


def names_in(path_params: Mapping[str, str], raw_path: bytes | None) -> dict[str, str]:
    """Return rollout id, agent, and settings of a request, each from its place in the URL.

    If each is one segment of the raw path, a ``%2F`` in it is a slash in that name. Otherwise the framework's decoded
    path is used, which does not distinguish a slash in a name from one between names.

    Raises:
        ValueError: the slashes are ambiguous.
    """
    exact = None if raw_path is None else _ENCODED.fullmatch(raw_path)
    if exact is None:
        read = {name: path_params[name] for name in _PARTS if name in path_params}
        for name, value in read.items():
            if any(word in f"/{value}/" for word in _WORDS):
                raise ValueError(
                    f"{name} {value[:_LONGEST]!r} in the URL has {' or '.join(_WORDS)} in it: the order is "
                    "/rollouts/ID/agents/AGENT/with/SETTINGS/v1, and a slash of a name itself is %2F"
                )
        return read
    found = dict(zip(_PARTS, exact.groups(), strict=True))
    read = {name: value.decode("ascii", "replace") for name, value in found.items() if value is not None}
    # Split at `&` and `=` before decoding, so that encoded ones stay part of the values.
    return {name: value if name == "settings" else unquote(value) for name, value in read.items()}


def rollout_url(names: Mapping[str, str]) -> RolloutUrl | None:
    """Return the URL that :func:`names_in` found; None if it names no rollout.

    Raises:
        ValueError: a name or a setting is invalid.
    """
    if "rollout_id" not in names:
        return None
    sampling: dict[str, float] = {}
    metadata: dict[str, str] = {}
    capture_content = True
    for name, value in parse_qsl(names.get("settings", ""), keep_blank_values=True, max_num_fields=100):
        if name.startswith(METADATA) and 0 < len(name.removeprefix(METADATA)) <= 64 and len(value) <= _LONGEST_VALUE:
            metadata[name.removeprefix(METADATA)] = value
        elif name in SAMPLING:
            sampling[name] = _number(name, value)
        elif name == CAPTURE_CONTENT:
            if value not in ("0", "1"):
                raise ValueError(f"{name} is {value[:64]!r} in the URL: write 0, or 1")
            capture_content = value == "1"
        else:
            raise ValueError(
                f"{name[:64]!r} in the URL after /with/: set {', '.join(SAMPLING)}, {CAPTURE_CONTENT}, or "
                f"{METADATA}NAME of up to 64 characters with a value of up to {_LONGEST_VALUE}"
            )
    if len(metadata) > _MOST_METADATA:
        raise ValueError(f"the URL sets {len(metadata)} fields of metadata: {_MOST_METADATA} at most")
    return RolloutUrl(names["rollout_id"], names.get("agent", DEFAULT_AGENT), sampling, metadata, capture_content)


def _number(name: str, value: str) -> float:
    kind = SAMPLING[name]
    try:
        number = kind(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value[:64]!r} in the URL: it is {'a whole' if kind is int else 'a'} number")
    if kind is int and not -(2**63) <= number < 2**63:
        raise ValueError(f"{name} is {value[:64]!r} in the URL: it is a number of 64 bits at most")
    return number


def root_span_ids(rollout_id: str, attempt_id: str) -> tuple[str, str]:
    """Return trace id and span id, in hex, of the root span of an attempt whose caller records no spans."""
    digits = hashlib.blake2b(
        json.dumps([rollout_id, attempt_id]).encode(), digest_size=24, person=b"rollout"
    ).hexdigest()
    return digits[:32], digits[32:]
