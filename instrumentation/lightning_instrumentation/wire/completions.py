"""Text completions: ``/v1/completions``. Ids of prompt and sample are on the choices.

A request with several prompts returns choices of several prompts, which one span cannot represent exactly: its ids are
left out, which is counted. Source: OpenAI API reference (legacy completions), vLLM's OpenAI-compatible server.
"""

from __future__ import annotations

from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.wire.answer import Answer
from lightning_instrumentation.wire.api import Api, Json, Wanted, blank


class CompletionAnswer(Answer):
    """A text completion, whole or streamed."""

    def __init__(self) -> None:
        super().__init__()
        self._several_prompts = False

    def add(self, part: Json) -> None:
        self.identify(part)
        usage = part.get("usage")
        if usage:
            self.input_tokens = usage.get("prompt_tokens")
            self.output_tokens = usage.get("completion_tokens")
        for position, said in enumerate(part.get("choices") or ()):
            choice = self.numbered(said, position)
            choice.finish_reason = said.get("finish_reason") or choice.finish_reason
            if said.get("text"):
                choice.content.append(said["text"])
            if said.get("token_ids"):
                choice.add_token_ids(said["token_ids"])
            if said.get("logprobs"):
                logprobs: Any = said["logprobs"]
                sampled = logprobs.get("token_logprobs") or ()
                choice.add_logprobs([float(one) for one in sampled if one is not None])
            prompt_ids = said.get("prompt_token_ids")
            if prompt_ids is not None:
                self._several_prompts |= self.prompt_ids is not None and self.prompt_ids != prompt_ids
                self.prompt_ids = prompt_ids

    def attributes(self, *, capture_content: bool) -> dict[str, Any]:
        if self._several_prompts:
            failures.note(
                "not-captured:several-prompts",
                "a completion request with several prompts is recorded without token ids; send one prompt a request",
            )
            self.prompt_ids = None
            for choice in self.choices.values():
                choice.token_ids, choice.logprobs = [], []
        return super().attributes(capture_content=capture_content)


class Completions(Api):
    """The format of text completions."""

    name = "completions"
    operation = semconv.TEXT_COMPLETION

    def fits(self, body: Json) -> bool:
        return isinstance(body.get("prompt"), str | list) and isinstance(body.get("model"), str)

    def wanted(self, body: Json) -> Wanted:
        # With ``echo``, the logprobs would include the prompt's, and cost an additional pass.
        return Wanted(
            token_ids="return_token_ids" not in body, logprobs="logprobs" not in body and not body.get("echo")
        )

    def additions(self, wanted: Wanted) -> dict[str, Any]:
        return {
            **({"return_token_ids": True} if wanted.token_ids else {}),
            # Zero alternatives: only the sampled token's own logprob.
            **({"logprobs": 0} if wanted.logprobs else {}),
        }

    def input_messages(self, body: Json) -> list[Any]:
        prompt = body.get("prompt")
        prompts = prompt if isinstance(prompt, list) else [prompt]
        return [{"role": "user", "parts": [{"type": "text", "content": p}]} for p in prompts if isinstance(p, str)]

    def answer(self) -> Answer:
        return CompletionAnswer()

    def hide(self, part: dict[str, Any], asked: Wanted) -> bool:
        changed = False
        for choice in part.get("choices") or ():
            if asked.token_ids:
                changed |= blank(choice, "prompt_token_ids") | blank(choice, "token_ids")
            if asked.logprobs:
                changed |= blank(choice, "logprobs")
        return changed
