"""Rows of other projects in words, turned into rows that each have one prompt and the messages to imitate or compare.

- ``messages``: a conversation, every answer of which is imitated, as in OpenAI's fine-tuning and TRL's ``SFTTrainer``;
  answers with OpenAI's ``"weight": 0`` are left out.
- ``chosen`` and ``rejected`` as whole conversations: their common beginning is the prompt (TRL's ``extract_prompt``),
  even if a column ``prompt`` repeats it as text (UltraFeedback).
- Texts: a prompt is a message of the user, an answer a message of the assistant.
- Rows with other columns for the same (``other_columns.py``).

Source: TRL documentation, "Dataset formats and types"; OpenAI documentation, "Supervised fine-tuning".
"""

from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, Literal

import orjson

from lightning_trainer.dataset.formats.other_columns import with_chat_columns
from lightning_trainer.dataset.rows import Row
from lightning_trainer.errors import DatasetError

_ASSISTANT = "assistant"


def chat_rows(row: Mapping[str, Any], objective: Literal["sft", "dpo"], where: str) -> Iterator[Row]:
    """Yield the rows that a row stands for: for a conversation, one for each answer in it; else one.

    Args:
        where: the row's place in its file, for messages.

    Raises:
        DatasetError: the row is a conversation without an answer, its tools are not JSON, or it is not of the form that
            its columns promise.
    """
    row = with_chat_columns(row, where)
    shown = {**row, "tools": _tools(row.get("tools"), where)}
    if objective == "dpo":
        shown |= _without_common_beginning(row)
    elif "messages" in row and not any(row.get(name) for name in ("input_ids", "completion", "answer")):
        yield from _answers(shown, where)
        return
    if isinstance(prompt := shown.get("prompt"), str) and prompt:
        shown["prompt"] = [{"role": "user", "content": prompt}]
    for name in ("completion", "chosen", "rejected"):
        if isinstance(answer := shown.get(name), str):
            shown[name] = {"role": _ASSISTANT, "content": answer}
    yield shown


def _answers(row: Row, where: str) -> Iterator[Row]:
    messages = row["messages"]
    if not isinstance(messages, list) or not all(isinstance(one, Mapping) for one in messages):
        raise DatasetError(f"{where}: its messages are not a list of chat messages; make them one")
    imitated = [place for place, one in enumerate(messages) if one.get("role") == _ASSISTANT and one.get("weight") != 0]
    if not imitated:
        raise DatasetError(f"{where}: its messages have no answer of the assistant to imitate; leave it out")
    for place in imitated:
        yield {**row, "prompt": messages[:place], "completion": messages[place]}


def _without_common_beginning(row: Mapping[str, Any]) -> Row:
    """Return the prompt and the answers if the answers are whole conversations, else an empty row."""
    chosen, rejected = row.get("chosen"), row.get("rejected")
    if isinstance(row.get("prompt"), list) or not (isinstance(chosen, list) and isinstance(rejected, list)):
        return {}
    if min(len(chosen), len(rejected)) < 2:
        return {}
    common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(chosen, rejected, strict=False)))
    return {"prompt": chosen[:common], "chosen": chosen[common:], "rejected": rejected[common:]}


def _tools(given: Any, where: str) -> Any:
    """Return tools as a list: TRL also takes their JSON, since a table's column cannot hold objects of many forms."""
    if not isinstance(given, str):
        return given
    try:
        return orjson.loads(given or "[]")
    except orjson.JSONDecodeError as error:
        raise DatasetError(f"{where}: its tools are not JSON ({error}); correct them") from error
