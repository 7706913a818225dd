"""Non-text parts of a prompt: refused with a sentence if the policy's model cannot read them.

A vision-language model takes images sent inside the request, as ``data:`` URLs: training must use exactly the image
that the model saw, so a URL whose content may change is not fetched, neither here nor by the engine. Hence each part
has to state its type: vLLM would take an address from a part without one. Nor may it have a ``uuid``: with that vLLM
takes an address from any field, or reuses what it was once sent under that name.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from lightning_instrumentation.redaction.documents import is_image

from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.gateway.request import EngineRequest
from lightning_trainer.ingest.media import MEDIA_FIELDS

_TEXTS = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "reasoning"})
_IMAGES = frozenset({"image_url", "input_image", "image"})
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,")


def refuse_unseen(request: EngineRequest, policy: ServedPolicy) -> None:
    """Refuse parts that the policy's model cannot read.

    Raises:
        RefusalError: 400, naming the model and the part.
    """
    if policy.sees is None:
        return
    for number, part in _parts(request.body.get("messages")):
        kind, where = part.get("type"), f"the {part.get('type')} part of message {number}"
        if not isinstance(kind, str):
            raise _refusal(f'a part of message {number} has no type: say what it is, as in {{"type": "text", ...}}')
        own = "image_url" if kind == "input_image" else kind
        for other in (*MEDIA_FIELDS, "uuid"):
            if other != own and part.get(other) is not None:
                raise _refusal(f"{where} has the field {other}, which does not belong to it: leave it out")
        if kind in _TEXTS:
            continue
        if not policy.sees:
            raise _refusal(
                f"the model of policy {policy.name!r} reads text alone and cannot take {where}: leave it out, or train "
                "a vision-language model"
            )
        if kind not in _IMAGES:
            raise _refusal(f"policy {policy.name!r} takes text and images, and {where} is neither: leave it out")
        inner = part.get(own)
        url = inner.get("url") if isinstance(inner, Mapping) else inner
        if not isinstance(url, str) or (match := _DATA_URL.match(url)) is None:
            raise _refusal(
                f"{where} is {str(url)[:60]!r}, and an address is not fetched: send the image itself, as "
                "data:image/png;base64,..."
            )
        if not is_image(url):
            raise _refusal(f"{where} is not the base64 of a PNG, JPEG, GIF, or WebP image: send one of these")
        size = (len(url) - match.end()) * 3 // 4
        if policy.media_size_each is not None and size > policy.media_size_each:
            raise _refusal(
                f"{where} has {size / 2**20:.1f} MiB, more than [store] media_size_each keeps "
                f"({policy.media_size_each / 2**20:g} MiB): send a smaller one"
            )


def _parts(messages: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, message in enumerate(messages if isinstance(messages, list) else (), start=1):
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            if isinstance(part, Mapping):
                yield number, part


def _refusal(sentence: str) -> RefusalError:
    return RefusalError(400, sentence, param="messages", code="unsupported_content")
