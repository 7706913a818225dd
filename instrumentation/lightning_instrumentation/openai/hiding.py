"""Takes out of a response what we asked for and the caller did not, so that they get the answer they would have got.

Only a server that knows ``return_token_ids`` sends the fields, and without being asked it sends them as null.
"""

from __future__ import annotations

import json
from typing import Any

from lightning_instrumentation.messages import field
from lightning_instrumentation.openai.request import Wanted

_NOTHING_SAID = (None, [], {})


def hide(part: Any, asked: Wanted) -> None:
    """Clean a response or a chunk in place, JSON or model object."""
    if asked.token_ids:
        _blank(part, "prompt_token_ids")
    for choice in field(part, "choices") or ():
        if asked.token_ids:
            _blank(choice, "token_ids")
        if asked.logprobs:
            _blank(choice, "logprobs")


def hide_raw(response: Any, decoded: Any, asked: Wanted) -> None:
    """Clean the body of an HTTP response that was read already."""
    hide(decoded, asked)
    response._content = json.dumps(decoded, ensure_ascii=False, separators=(",", ":")).encode()


def is_ours_alone(chunk: Any, asked: Wanted) -> bool:
    """Whether a (cleaned) chunk was sent only to carry tokens that we asked for: it says nothing at all."""
    choices = field(chunk, "choices")
    if not asked or not choices or field(chunk, "usage") is not None:
        return False
    return all(field(choice, "finish_reason") is None and _says_nothing(field(choice, "delta")) for choice in choices)


def _says_nothing(delta: Any) -> bool:
    if delta is None:
        return True
    said = dict(delta) if isinstance(delta, dict) else {**vars(delta), **(getattr(delta, "model_extra", None) or {})}
    return all(value in _NOTHING_SAID for value in said.values())


def _blank(thing: Any, name: str) -> None:
    if isinstance(thing, dict):
        if thing.get(name) is not None:
            thing[name] = None
    elif getattr(thing, name, None) is not None:
        setattr(thing, name, None)
