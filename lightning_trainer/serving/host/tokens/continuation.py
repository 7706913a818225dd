"""Gives a prompt that repeats a sampled text the ids that were sampled, by wrapping two of vLLM's methods.

vLLM (0.31.0) renders messages to text and tokenizes all of it, so an answer that the model wrote as ``th`` ``e`` comes
back as ``the``: the prompt differs from what was sampled, and no turn extends the previous one. vLLM has no option
against this. Two methods are wrapped, on the engine's own objects and not on their classes: the renderer's step from
text to ids (``BaseRenderer._tokenize_prompt_async``), and ``generate``, whose outputs are the ids to remember. The
engine gets the ids as a prompt like any other, so what it reports as the prompt is what it saw.
"""

import asyncio
import contextvars
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.tokens.conversations import Conversations, Remembered, answer_text, continued

logger = logging.getLogger(__name__)

OWNER_HEADER = "x-lightning-conversation"
"""On a request: the owner of its conversation. Without this header nothing is remembered and nothing kept."""
KEPT_HEADER = "x-lightning-kept-tokens"
"""On an answer: the number of leading prompt tokens that were kept as sampled, because tokenizing gave others."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    text: str
    ids: Sequence[int]
    after: Remembered | None


@dataclass(slots=True)
class Turn:
    """One request of a conversation."""

    owner: str
    kept_tokens: int = 0
    prompts: list[_Prompt] = field(default_factory=list)


current_turn: contextvars.ContextVar[Turn | None] = contextvars.ContextVar("turn", default=None)
"""The turn of the request that the running task answers."""


def begin_turn(headers: Sequence[tuple[bytes, bytes]]) -> Turn | None:
    """Set the turn that this task answers, from its request's headers, and return it; None if they name no owner."""
    name = OWNER_HEADER.encode("latin-1")
    owner = next((value.decode("latin-1") for key, value in headers if key == name), None)
    turn = None if owner is None else Turn(owner)
    current_turn.set(turn)
    return turn


def keep_sampled_ids(engine: Any) -> None:
    """Make an ``AsyncLLM`` continue conversations with the ids that it sampled.

    Raises:
        EngineError: this vLLM lacks the methods to wrap.
    """
    from transformers import PreTrainedTokenizerBase

    keeper = _TokenKeeper(engine)
    if not isinstance(tokenizer := engine.renderer.tokenizer, PreTrainedTokenizerBase):
        logger.warning(
            "keep_sampled_ids has no effect: the tokenizer is a %s, not one of transformers'", type(tokenizer).__name__
        )
        return
    engine.renderer._tokenize_prompt_async = keeper.tokenize
    engine.generate = keeper.generate


class _TokenKeeper:
    def __init__(self, engine: Any) -> None:
        self._conversations = Conversations()
        self._renderer = engine.renderer
        try:
            self._tokenize = self._renderer._tokenize_prompt_async
            self._executor = self._renderer._executor
            self._generate = engine.generate
        except AttributeError as error:
            raise EngineError(
                f"this vLLM cannot go on with the ids that it sampled ({error}): "
                "set keep_sampled_ids = false in [engine]"
            ) from error

    async def tokenize(self, prompt: Mapping[str, Any], params: Any) -> Any:
        """Wrap ``_tokenize_prompt_async``."""
        tokens = await self._tokenize(prompt, params)
        turn = current_turn.get()
        if turn is None or _bound_to_its_tokens(prompt, params, tokens):
            return tokens
        text, ids, after = prompt["prompt"], tokens["prompt_token_ids"], None
        if beginnings := self._conversations.beginnings(turn.owner, text):
            found = await self._run(continued, text, ids, beginnings, self._encode, self._decode)
            longest = params.max_input_tokens
            # Sampled words may have more tokens than tokenized ones: a prompt that fits must not be refused for that.
            if found is not None and (longest is None or len(found[1]) <= longest):
                after, continued_ids = found
                if continued_ids != ids:
                    turn.kept_tokens = len(after.ids)
                    tokens["prompt_token_ids"] = ids = continued_ids
        turn.prompts.append(_Prompt(text, list(ids), after))
        return tokens

    def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> AsyncGenerator[Any]:
        """Wrap ``AsyncLLM.generate``."""
        outputs = self._generate(prompt, sampling_params, request_id, **options)
        turn = current_turn.get()
        if turn is None or not isinstance(prompt, Mapping):
            return outputs
        ids = prompt.get("prompt_token_ids")
        known = next((one for one in turn.prompts if one.ids == ids), None)
        return outputs if known is None else self._remembering(outputs, turn.owner, known, sampling_params)

    async def _remembering(
        self, outputs: AsyncGenerator[Any], owner: str, prompt: _Prompt, sampling_params: Any
    ) -> AsyncGenerator[Any]:
        pieces = sampling_params.output_kind.name == "DELTA"
        answers: dict[int, list[int]] = {}
        ended: set[int] = set()
        async with aclosing(outputs):
            async for output in outputs:
                for choice in output.outputs:
                    if not pieces:
                        answers[choice.index] = []
                    answers.setdefault(choice.index, []).extend(choice.token_ids)
                    if choice.finish_reason in ("stop", "length"):
                        ended.add(choice.index)
                # Remember it before the caller has the end of the answer: the caller's next prompt may repeat it.
                if output.finished and len(ended) == sampling_params.n:
                    await self._remember(owner, prompt, [answers[index] for index in sorted(answers)])
                yield output

    async def _remember(self, owner: str, prompt: _Prompt, answers: Sequence[list[int]]) -> None:
        texts = await self._run(lambda: [answer_text(prompt.ids, ids, self._decode) for ids in answers])
        told = list(zip(texts, answers, strict=True))
        self._conversations.remember(owner, prompt.text, prompt.ids, told, after=prompt.after)

    async def _run(self, work: Any, *arguments: Any) -> Any:
        """Run work in the thread that tokenizes: two threads must not use a tokenizer at once."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, partial(work, *arguments))

    def _encode(self, text: str) -> list[int]:
        return self._renderer.get_tokenizer().encode(text, add_special_tokens=False)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._renderer.get_tokenizer().decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)


def _bound_to_its_tokens(prompt: Mapping[str, Any], params: Any, tokens: Mapping[str, Any]) -> bool:
    """Whether the tokens are tied to more than the text: images, truncation to a number, or offsets in the text."""
    return bool(
        prompt.get("multi_modal_data") or params.truncate_prompt_tokens is not None or "prompt_token_offsets" in tokens
    )
