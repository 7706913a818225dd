"""In the host's process: sends what a response's tokens were drawn from with the response, if the caller asks for it.

The gateway asks with the header ``x-lightning-support``. A whole answer then ends with one more field, and a stream has
one more event, right before the chunk that ends the choice:

    {..., "lightning_support": {"0": {"support": BASE64}, "1": {"unknown": "..."}}}

by choice; a choice without anything to report has no entry. ``unknown`` is a sentence that says why the supports are
not known, for example because the request used a parameter that cannot be written down. Without ``support`` and
``unknown``, each token could have been any of the vocabulary. ``routed_experts`` is added if the engine reports them
(``host/tokens/routed_experts.py``). The same header on the answer says that the engine vouches for all this, also for a
choice without an entry.

vLLM merges pieces of a stream that come faster than they are read, and loses what they were drawn from; a wrapper of
``RequestOutput.add`` keeps that.

vLLM 0.31.0 (``RequestOutput.add``). Upstream: we know of no issue.
"""

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Support, pattern_of
from lightning_trainer.serving.host.tokens.routed_experts import LIMIT_BYTES as EXPERTS_LIMIT_BYTES
from lightning_trainer.serving.host.tokens.support import LEFT_OUT, LIMIT_BYTES, NEW, SEEN, restricts
from lightning_trainer.serving.host.weights.version_pinning import App, Message, Receive, Send

HEADER = b"x-lightning-support"
FIELD = "lightning_support"

_UNDERSTOOD = frozenset(
    (
        # what the trainer computes with, and what the sets contain
        *("temperature", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty"),
        *("top_p", "top_k", "min_p", "structured_outputs", "allowed_token_ids", "bad_words", "min_tokens"),
        # when sampling ends, how often it is done, and what is reported of it: this does not change what is drawn from
        *("n", "seed", "stop", "stop_token_ids", "ignore_eos", "max_tokens", "repetition_detection"),
        *("logprobs", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start", "logprob_token_ids"),
        *("flat_logprobs", "detokenize", "skip_special_tokens", "spaces_between_special_tokens", "output_kind"),
        *("include_stop_str_in_output", "stream_interval", "skip_clone", "output_text_buffer_length"),
        *("skip_reading_prefix_cache", "routed_experts_prompt_start", "watermarking"),
    )
)


@dataclass(slots=True)
class Collected:
    """What is known about the choices of one response and has not been sent yet."""

    by_choice: dict[str, Mapping[str, str]] = field(default_factory=dict)

    def add(self, output: Any, parameters: Any, vocabulary: int) -> None:
        """Note the choices that have ended, from vLLM's ``RequestOutput`` and ``SamplingParams``."""
        for choice in output.outputs:
            if choice.finish_reason in (None, "error"):
                continue
            masks = None if choice.sampling_mask is None else choice.sampling_mask.token_ids
            said = _said(masks, parameters, vocabulary)
            if said or choice.routed_experts is not None:
                self.by_choice[str(choice.index)] = {**(said or {}), **_experts(choice, parameters)}

    def take(self) -> bytes | None:
        """Return what has not been sent yet as JSON, and forget it; None if there is nothing."""
        if not self.by_choice:
            return None
        taken, self.by_choice = self.by_choice, {}
        return json.dumps(taken, separators=(",", ":")).encode()


_collected: ContextVar[Collected | None] = ContextVar("lightning_support", default=None)


def read_masks(masks: Sequence[Sequence[int]], vocabulary: int) -> Support:
    """Read what the engine's process wrote (``host/tokens/support.py``), one list per token.

    Raises:
        ValueError: the sets are too large, or a token names a set that was not sent.
    """
    index_of: dict[bytes, int] = {}
    numbered: list[int] = []  # the response's n-th set, as an index
    size, indices = 0, []
    for words in masks:
        head = words[0] if words else None
        if head is None:
            indices.append(-1)
        elif head == SEEN:
            if words[1] >= len(numbered):
                raise ValueError("the engine names a set of entries that it has not sent")
            indices.append(numbered[words[1]])
        elif head == LEFT_OUT:
            raise ValueError(f"what these tokens were drawn from takes more than {LIMIT_BYTES >> 20} MiB")
        else:
            pattern = np.array(words[2:], "<i4").tobytes()[: words[1]] if head == NEW else pattern_of(words, vocabulary)
            if pattern not in index_of:
                size += len(pattern)
                index_of[pattern] = len(index_of)
            if head == NEW:
                numbered.append(index_of[pattern])
            indices.append(index_of[pattern])
            if size > LIMIT_BYTES:
                raise ValueError(f"what these tokens were drawn from takes more than {LIMIT_BYTES >> 20} MiB")
    return Support(vocabulary, tuple(index_of), tuple(indices))


def _said(masks: Sequence[Sequence[int]] | None, parameters: Any, vocabulary: int) -> Mapping[str, str] | None:
    if beyond := _beyond(parameters):
        return {"unknown": f"the request asked for {', '.join(beyond)}, which is not written down"}
    if masks is None:
        return (
            {"unknown": "the engine wrote nothing down of a request that restricts"} if restricts(parameters) else None
        )
    if not restricts(parameters) and not any(masks):
        return None
    try:
        body = read_masks(masks, vocabulary).encode()
    except ValueError as error:
        return {"unknown": str(error)}
    return {"support": base64.b64encode(body).decode()}


def _experts(choice: Any, parameters: Any) -> Mapping[str, str]:
    """Return which experts the tokens went through, and remove them from vLLM's own answer, which reports them only if
    it is not streamed."""
    chosen, choice.routed_experts = choice.routed_experts, None
    if chosen is None or chosen.nbytes > EXPERTS_LIMIT_BYTES:
        return {}
    _, layers, top_k = chosen.shape
    ids = chosen.astype(chosen.dtype.newbyteorder("<"), copy=False).tobytes()
    told = RoutedExperts(parameters.routed_experts_prompt_start, layers, top_k, chosen.itemsize, ids)
    return {"routed_experts": base64.b64encode(told.encode()).decode()}


def _beyond(parameters: Any) -> list[str]:
    """Return the fields that are set and whose meaning is not known here: a later vLLM may have more of them."""
    plain = _plain(type(parameters))
    return [
        name
        for name in parameters.__struct_fields__
        if name not in _UNDERSTOOD and not name.startswith("_") and getattr(parameters, name) != getattr(plain, name)
    ]


@lru_cache
def _plain(kind: Any) -> Any:
    return kind()


def _refuse_dead_end(output: Any) -> None:
    """Raise an error that says so if a grammar allowed no token at all; vLLM would report only an internal error."""
    from vllm.exceptions import VLLMValidationError

    for choice in output.outputs:
        masks = choice.sampling_mask.token_ids if choice.sampling_mask is not None else ()
        if choice.finish_reason == "error" and masks and list(masks[-1][:2]) == [NEW, 1]:
            raise VLLMValidationError(
                "the grammar that the request asks for (response_format, structured_outputs or tool_choice) allows no "
                "token here: no text that ends fits it. Mend the schema, which may refer to itself without an end"
            )


def use_for_engine(engine: Any) -> None:
    """Watch every response of the engine, and note what its tokens were drawn from if its request asked for that."""
    from vllm.outputs import RequestOutput

    generate, add, vocabulary = engine.generate, RequestOutput.add, engine.model_config.get_vocab_size()

    async def generate_and_note(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        async with aclosing(generate(prompt, sampling_params, *args, **kwargs)) as outputs:
            async for output in outputs:
                _refuse_dead_end(output)
                if (collected := _collected.get()) is not None:
                    collected.add(output, sampling_params, vocabulary)
                yield output

    def add_with_mask(self: Any, next_output: Any, aggregate: bool) -> None:
        masks = {choice.index: choice.sampling_mask for choice in next_output.outputs if choice.sampling_mask}
        add(self, next_output, aggregate)
        for choice in self.outputs:
            choice.sampling_mask = masks.get(choice.index, choice.sampling_mask)

    engine.generate = generate_and_note
    RequestOutput.add = add_with_mask


async def answer_with_support(app: App, scope: Message, receive: Receive, send: Send) -> None:
    """Call the app, and send what was noted along with its answer, if the request asks for it."""
    if (HEADER, b"1") not in scope["headers"]:
        return await app(scope, receive, send)
    collected = Collected()
    # The app runs in this context, and so do the tasks that it creates for this request.
    token = _collected.set(collected)
    try:
        await app(scope, receive, _Sending(send, collected))
    finally:
        _collected.reset(token)


class _Sending:
    """Adds what was noted: to a stream as an event, at once; to a whole answer as a field, when all of it is there."""

    def __init__(self, send: Send, collected: Collected) -> None:
        self._send = send
        self._collected = collected
        self._start: Message | None = None
        """Held back until the length of the whole answer is known."""
        self._parts: list[bytes] = []

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), (HEADER, b"1")]}
            kind = next((value for name, value in message["headers"] if name.lower() == b"content-type"), b"")
            if kind.startswith(b"application/json"):
                self._start = message
                return
            await self._send(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self._start is None:
            if (said := self._collected.take()) is not None:
                message = {
                    **message,
                    "body": b'data: {"%b":%b}\n\n' % (FIELD.encode(), said) + message.get("body", b""),
                }
            await self._send(message)
        else:
            self._parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                await self._send_whole(self._start, b"".join(self._parts))

    async def _send_whole(self, start: Message, body: bytes) -> None:
        said = self._collected.take()
        if said is not None and start["status"] == 200 and body.endswith(b"}"):
            body = body[:-1] + b',"%b":%b}' % (FIELD.encode(), said)
            headers = [pair for pair in start["headers"] if pair[0].lower() != b"content-length"]
            start = {**start, "headers": [*headers, (b"content-length", str(len(body)).encode())]}
        await self._send(start)
        await self._send({"type": "http.response.body", "body": body})
