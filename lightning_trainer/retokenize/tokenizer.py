"""The policy's own tokenizer and chat template, as the engine uses them.

An answer without tool calls is tokenized as it is and closed with the token that ends a turn. One with tool calls or
reasoning is what the template writes after the prompt, because the engine's parser took its words apart. What the model
really sampled may have been spelled with other ids: that is why ``grading`` checks them, and why such ids are never
graded exact.
"""

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from lightning_trainer.errors import MissingExtraError, ModelError
from lightning_trainer.retokenize.chat import ChatMessage, NoWordsError, as_served, tool_calls

_ASKED = {"role": "user", "content": "Is it open?"}
_ANSWERED = {"role": "assistant", "content": "It is open."}


class PolicyTokenizer:
    """A model's tokenizer with its chat template, loaded once, from local files only."""

    def __init__(self, folder: Path, chat_template: str | None = None) -> None:
        """Load the tokenizer.

        Args:
            folder: of the model.
            chat_template: Jinja text of the template that the engine was given; None: the model's own.

        Raises:
            MissingExtraError: transformers is not installed.
            ModelError: the folder has no tokenizer, or there is no template.
        """
        try:
            from transformers import AutoTokenizer
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                'tokenizing words again needs transformers; run: pip install "lightning-trainer[train]"'
            ) from error
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise ModelError(f"the model {folder} has no tokenizer that can be loaded: {error}") from error
        self._folder = folder
        self._template = chat_template
        """None: the model's own; it may have several, and then the tools decide which one is used."""
        if not (chat_template or self._tokenizer.chat_template):
            raise ModelError(f"the model {folder} has no chat template; name one as engine.chat_template")

    def prompt_ids(self, messages: Sequence[ChatMessage], tools: Sequence[dict]) -> tuple[int, ...]:
        """Return the ids of a chat prompt, up to where the answer begins.

        Raises:
            NoWordsError: the template refuses the messages; the message says why.
        """
        return self._ids(self._render(messages, tools, answering=True))

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Return the ids of the prompt of a text completion.

        Raises:
            NoWordsError: it is not text that can be encoded.
        """
        return self._ids(text, special=True)

    def answers(
        self, messages: Sequence[ChatMessage], tools: Sequence[dict], answer: ChatMessage, *, truncated: bool
    ) -> Iterator[tuple[int, ...]]:
        """Yield tokenizations of an answer, the likeliest first; each decodes to the answer's words.

        Raises:
            NoWordsError: the template cannot write the answer after the prompt, or a tool call is broken.
        """
        for called in (call["function"] for call in tool_calls(answer)):
            if not isinstance(called["arguments"], dict):
                raise NoWordsError(
                    f"the answer calls {called['name']!r} with the arguments {called['arguments']!r}, not a JSON object"
                )
        if answer.get("tool_calls") or answer.get("reasoning_content"):
            before = self._render(messages, tools, answering=True)
            after = self._render([*messages, answer], tools, answering=False)
            if not after.startswith(before):
                raise NoWordsError("the chat template does not write the answer after its prompt")
            text = after[len(before) :].partition(self.decoded([self._end]))[0]
        else:
            text = answer["content"]
        ids = self._ids(text)
        if self.decoded(ids) != text:
            return
        closed = (*ids, self._end)
        # An answer cut at max_tokens has no end token; neither does one that a stop sequence of the user's ended.
        yield from (ids, closed) if truncated else (closed, ids)

    def decoded(self, ids: Sequence[int]) -> str:
        """Return the text that ids spell, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    @cached_property
    def _end(self) -> int:
        """The token that ends an answer: the first one at which the engine stops in what the template writes after it.

        In some models (Gemma, Phi-3) the tokenizer's end token is another one.
        """
        end = self._tokenizer.eos_token_id
        try:
            said = self._render([_ASKED, _ANSWERED], (), answering=False)
            stops = _generation_ends(self._folder)
        except (NoWordsError, OSError, ValueError):
            return end
        after = self._ids(said.rpartition(_ANSWERED["content"])[2])
        return next((token for token in after if token == end or token in stops), end)

    def _ids(self, text: str, *, special: bool = False) -> tuple[int, ...]:
        # A rendered prompt already has its special tokens; adding them again would double the first one.
        try:
            return tuple(self._tokenizer(text, add_special_tokens=special)["input_ids"])
        except (TypeError, ValueError) as error:  # half of a surrogate pair
            raise NoWordsError(f"the words are not text that can be encoded: {error}") from error

    def _render(self, messages: Sequence[ChatMessage], tools: Sequence[dict], *, answering: bool) -> str:
        import jinja2

        try:
            return self._tokenizer.apply_chat_template(
                [as_served(message) for message in messages],
                tools=list(tools) or None,
                chat_template=self._template,
                add_generation_prompt=answering,
                tokenize=False,
            )
        except (jinja2.TemplateError, TypeError, KeyError, ValueError) as error:
            raise NoWordsError(f"the chat template refuses the messages: {error}") from error


def _generation_ends(folder: Path) -> frozenset[int]:
    """Return the tokens that end generation by the model's ``generation_config.json``, which vLLM reads."""
    path = folder / "generation_config.json"
    said = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    return frozenset(said if isinstance(said, list) else [said] if isinstance(said, int) else ())
