"""A request's sampling parameters as span attributes, for every API.

Every parameter that changes the sampling distribution has an attribute, so that a reader of the span can compute the
same distribution or say why not. Long values and users' texts (a schema, bad words) are represented by their hash.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from lightning_instrumentation import semconv

_NUMBERS: Mapping[str, str] = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "min_p": semconv.REQUEST_MIN_P,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
    "repetition_penalty": semconv.REQUEST_REPETITION_PENALTY,
    "min_tokens": semconv.REQUEST_MIN_TOKENS,
}
_STRUCTURED = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""Kinds of vLLM's ``structured_outputs``."""
_UNKNOWN = ("use_beam_search", "thinking_token_budget", "vllm_xargs", "logits_processors")
_FORMATS = ("response_format", "text", "output_config", "structured_outputs")
_OTHERS = frozenset(
    (
        *_NUMBERS,
        *_UNKNOWN,
        *_FORMATS,
        *("n", "stop", "stop_sequences", "stop_token_ids", "ignore_eos"),
        *("logit_bias", "tool_choice", "allowed_token_ids", "bad_words"),
    )
)
_MOST_IDS = 256
_MOST_STOPS, _LONGEST_STOP = 64, 256
_MOST_CHARACTERS = 1 << 16


def sampling(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes for a body; numbers are read as servers read them, also from text. Values of a wrong type
    are left out: refusing them is the server's business."""
    read: dict[str, Any] = {}
    if _OTHERS.isdisjoint(body):
        return read
    for key in _NUMBERS.keys() & body.keys():
        if (number := _number(body[key])) is not None:
            read[_NUMBERS[key]] = number
    if (count := _number(body.get("n"))) is not None:
        read[semconv.REQUEST_CHOICE_COUNT] = count
    stop = body.get("stop") or body.get("stop_sequences")
    if isinstance(stop, (str, list, tuple)) and stop:
        every = (stop,) if isinstance(stop, str) else stop
        read[semconv.REQUEST_STOP_SEQUENCES] = tuple(str(one)[:_LONGEST_STOP] for one in every[:_MOST_STOPS])
    if body.get("ignore_eos") is True:
        read[semconv.REQUEST_IGNORE_EOS] = True
    for key, name in (
        ("stop_token_ids", semconv.REQUEST_STOP_TOKEN_IDS),
        ("allowed_token_ids", semconv.REQUEST_ALLOWED_TOKEN_IDS),
    ):
        if body.get(key):
            read[name] = _ids(body[key])
    if body.get("bad_words"):
        read[semconv.REQUEST_BAD_WORDS] = _counted(body["bad_words"], "words")
    if body.get("logit_bias"):
        text = _text(body["logit_bias"])
        whole = len(text) <= _MOST_CHARACTERS
        read[semconv.REQUEST_LOGIT_BIAS] = text if whole else _counted(body["logit_bias"], "entries")
    # For these, even 0 asks for something: no token of thinking.
    if unknown := tuple(name for name in _UNKNOWN if body.get(name) or type(body.get(name)) is int):
        read[semconv.REQUEST_UNKNOWN] = unknown
    _add_form(read, body)
    _add_tool_choice(read, body.get("tool_choice"))
    return read


def _add_form(read: dict[str, Any], body: Mapping[str, Any]) -> None:
    form = _form(body)
    kind = form.get("type")
    if kind in ("text", "json_object", "json_schema"):
        read[semconv.OUTPUT_TYPE] = "text" if kind == "text" else "json"
    of_vllm = body.get("structured_outputs")
    if isinstance(of_vllm, Mapping) and (given := [one for one in _STRUCTURED if of_vllm.get(one)]):
        kind, form = "json_schema" if given[0] == "json" else given[0], of_vllm
    if isinstance(kind, str) and kind != "text":
        read[semconv.REQUEST_STRUCTURED_OUTPUT] = kind[:64]
        read[semconv.REQUEST_STRUCTURED_OUTPUT_HASH] = _hash(form)


def _form(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the equivalent of ``response_format`` in chat completions, from its place in each API."""
    for outer, inner in (("response_format", None), ("text", "format"), ("output_config", "format")):
        form = body.get(outer)
        if inner is not None:
            form = form.get(inner) if isinstance(form, Mapping) else None
        if isinstance(form, Mapping):
            return form
    return {}


def _add_tool_choice(read: dict[str, Any], choice: Any) -> None:
    kind = choice.get("type") if isinstance(choice, Mapping) else choice
    if kind in ("required", "any"):  # "any" is Anthropic's term
        read[semconv.REQUEST_TOOL_CHOICE] = "required"
    elif isinstance(choice, Mapping) and kind not in ("auto", "none"):
        read[semconv.REQUEST_TOOL_CHOICE] = "named"


def _number(value: Any) -> float | None:
    """Return the number that pydantic, with which vLLM reads requests, makes of a value; None if it makes none."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        value = _written_number(value)
    return value if value is not None and _is_number(value) and math.isfinite(value) else None


def _written_number(text: str) -> float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return None


def _is_number(value: Any) -> bool:
    """Whether an attribute can hold a value: an attribute's integers have 64 bits."""
    return isinstance(value, float) or (type(value) is int and -(2**63) <= value < 2**63)


def _ids(given: Any) -> tuple[int, ...] | str:
    if (
        isinstance(given, (list, tuple))
        and len(given) <= _MOST_IDS
        and all(type(one) is int and _is_number(one) for one in given)
    ):
        return tuple(given)
    return _counted(given, "ids")


def _counted(given: Any, what: str) -> str:
    return f"{len(given) if hasattr(given, '__len__') else 1} {what}, sha256:{_hash(given)}"


def _hash(value: Any) -> str:
    return hashlib.sha256(_text(value).encode()).hexdigest()[:16]


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True, default=str)
