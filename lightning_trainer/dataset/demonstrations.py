"""Demonstrations and preference pairs that a policy learns from a file, as ids of the policy's own tokenizer.

Files are Parquet or JSON lines, made by ``lightning-trainer build`` (``examples/1``, ``pairs/1``) or by other projects:
in words (``formats/chat_rows.py``) or in ids (TRL's ``input_ids`` with ``completion_mask``). Recorded ids are used if
they spell the recorded words; words without such ids, such as another model's, are written by the policy's chat
template and closed with its end token, unless a token limit ended them.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from lightning_trainer.dataset.formats.chat_rows import chat_rows
from lightning_trainer.dataset.formats.json_lines import read_json_lines
from lightning_trainer.dataset.rows import EXAMPLES, PAIRS
from lightning_trainer.errors import DatasetError
from lightning_trainer.retokenize.chat import NoWordsError, tool_calls
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer

MakeTokenizer = Callable[[], PolicyTokenizer]

_SCHEMA = "schema"
_SCHEMA_OF = {"sft": EXAMPLES, "dpo": PAIRS}
_COMMANDS = {"sft": "lightning-trainer build --for sft", "dpo": "lightning-trainer build --for dpo"}


@dataclass(frozen=True, slots=True)
class Demonstration:
    """A prompt with the answer to imitate; for a pair, also with the worse answer."""

    name: str
    """Unique in its file."""
    agent: str
    prompt_ids: Sequence[int]
    answers: tuple[Sequence[int], ...]
    """Token ids of each answer, the chosen one first."""


def read_demonstrations(
    path: Path, objective: Literal["sft", "dpo"], vocabulary: int, tokenizer: MakeTokenizer
) -> tuple[Demonstration, ...]:
    """Read a file for an objective.

    Args:
        vocabulary: the number of ids that the policy has.
        tokenizer: makes the policy's tokenizer if there are words.

    Raises:
        DatasetError: the file cannot be read or is of another kind, or a row cannot be used; the message names the row.
        ModelError: there are words, and the model has no tokenizer or chat template.
    """
    reader = _Reader(path, tokenizer)
    found = []
    for number, row in enumerate(_rows(path, objective), start=1):
        where = f"{path.name}: row {number}"
        for answer, shown in enumerate(chat_rows(row, objective, where)):
            try:
                prompt_ids, answers = reader.pair(shown, where) if objective == "dpo" else reader.example(shown, where)
            except NoWordsError as error:
                raise DatasetError(f"{where}: {error}") from error
            prompt, *sides = (_packed(ids, where) for ids in (prompt_ids, *answers))
            _check(prompt, sides, vocabulary, where)
            name = f"{path.name}/{number}.{answer}" if answer else f"{path.name}/{number}"
            found.append(Demonstration(name, str(row.get("agent") or ""), prompt, tuple(sides)))
    if not found:
        raise DatasetError(f"{path} has no rows; make some with {_COMMANDS[objective]}")
    return tuple(found)


def _check(prompt: Sequence[int], sides: Sequence[Sequence[int]], vocabulary: int, where: str) -> None:
    if not len(prompt) or not all(map(len, sides)):
        raise DatasetError(f"{where} has an empty prompt or answer; leave it out")
    for id_ in (min(chain(prompt, *sides)), max(chain(prompt, *sides))):
        if not 0 <= id_ < vocabulary:
            raise DatasetError(
                f"{where} holds the token id {id_}, and the policy has {vocabulary}: its ids are of another model; "
                "give the words instead"
            )


def _packed(ids: Any, where: str) -> Sequence[int]:
    try:
        return array("i", ids)
    except (TypeError, OverflowError) as error:
        raise DatasetError(f"{where}: its token ids are not a list of whole numbers ({error}); correct it") from error


def _rows(path: Path, objective: Literal["sft", "dpo"]) -> Iterator[Mapping[str, Any]]:
    wanted = _SCHEMA_OF[objective]
    if path.suffix == ".parquet":
        from lightning_trainer.dataset.formats.parquet import read_rows_parquet

        yield from read_rows_parquet(path, wanted, foreign=True)
        return
    for row in read_json_lines(path):
        if row.get(_SCHEMA, wanted) != wanted:
            raise DatasetError(
                f"{path}: a row has the schema {row[_SCHEMA]!r}, and {objective} reads {wanted}; make it with "
                f"{_COMMANDS[objective]}"
            )
        yield row


class _Reader:
    """Turns the rows of one file into ids."""

    def __init__(self, path: Path, make_tokenizer: MakeTokenizer) -> None:
        self._path = path
        self._make_tokenizer = make_tokenizer

    @cached_property
    def _tokenizer(self) -> PolicyTokenizer:
        return self._make_tokenizer()

    def example(self, row: Mapping[str, Any], where: str) -> tuple[Sequence[int], list[Sequence[int]]]:
        if "input_ids" in row:
            return _tokenized(row, where)
        answer = row.get("answer") or _only(row.get("completion"), where)
        return self._ids(row, where, [(answer, row.get("response_ids"), bool(row.get("truncated")))])

    def pair(self, row: Mapping[str, Any], where: str) -> tuple[Sequence[int], list[Sequence[int]]]:
        sides = [
            (
                row.get(f"{side}_answer") or _only(row.get(side), where),
                row.get(f"{side}_ids"),
                bool(row.get(f"{side}_truncated")),
            )
            for side in ("chosen", "rejected")
        ]
        return self._ids(row, where, sides)

    def _ids(
        self, row: Mapping[str, Any], where: str, answers: list[tuple[Any, Any, bool]]
    ) -> tuple[Sequence[int], list[Sequence[int]]]:
        """Return the ids of the prompt and of each answer, given as words, ids, and whether it was cut off."""
        prompt_ids = row.get("prompt_ids")
        if prompt_ids and all(ids and self._spells(_packed(ids, where), words) for words, ids, _ in answers):
            return prompt_ids, [ids for _, ids, _ in answers]
        prompt, tools = row.get("prompt"), row.get("tools") or ()
        if not isinstance(prompt, list) or not prompt or not all(isinstance(words, Mapping) for words, _, _ in answers):
            raise DatasetError(
                f"{where} has neither ids nor words that can be shown: it needs prompt_ids with the ids of the answer, "
                "or chat messages"
            )
        return self._tokenizer.prompt_ids(prompt, tools), [
            self._answer_ids(prompt, tools, words, where, truncated=truncated) for words, _, truncated in answers
        ]

    def _spells(self, ids: Sequence[int], words: Any) -> bool:
        """Whether the ids are of this tokenizer, as far as the words can tell."""
        if not isinstance(words, Mapping):
            return True
        said = [one.strip() for one in (words.get("content"), *_called(words)) if one]
        return not said or all(one in self._tokenizer.decoded(ids) for one in said)

    def _answer_ids(self, prompt: list, tools: Any, words: Any, where: str, *, truncated: bool) -> Sequence[int]:
        ids = next(self._tokenizer.answers(prompt, tools, {"content": "", **words}, truncated=truncated), None)
        if ids is None:
            raise DatasetError(f"{where}: the policy's tokenizer cannot spell the answer; leave the row out")
        spelled = self._tokenizer.decoded(ids)
        if not all(name in spelled for name in _called(words)):
            raise DatasetError(  # a template that knows no tools ends the turn at once
                f"{where}: the policy's chat template does not write the answer's tool calls; leave the row out, or "
                "name a template that does as engine.chat_template"
            )
        if (words.get("reasoning_content") or "").strip() not in spelled:
            raise DatasetError(
                f"{where}: the policy's chat template does not write the answer's reasoning; take reasoning_content "
                "out of the row, or name a template that writes it as engine.chat_template"
            )
        return ids


def _called(message: Mapping[str, Any]) -> list[str]:
    """Return the names of the tools that an answer calls."""
    return [call["function"]["name"] for call in tool_calls(message)]


def _only(messages: Any, where: str) -> Any:
    """Return the message of TRL's completion: a list of one message of the assistant."""
    if messages is None or isinstance(messages, Mapping):
        return messages
    if not isinstance(messages, list) or len(messages) != 1:
        raise DatasetError(f"{where}: its answer is not one message of the assistant; make it one")
    return messages[0]


def _tokenized(row: Mapping[str, Any], where: str) -> tuple[Sequence[int], list[Sequence[int]]]:
    ids, mask = _list(row["input_ids"]), _list(row.get("completion_mask"))
    start = mask.index(1) if 1 in mask else 0
    if len(mask) != len(ids) or not start or not all(mask[start:]):
        raise DatasetError(
            f"{where}: its completion_mask is not zeros over a prompt and ones over the answer; make it so"
        )
    return ids[:start], [ids[start:]]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
