"""Rows of OpenAI's preference tuning, ShareGPT and Alpaca, turned into rows with TRL's columns for the same.

- ``input`` with ``preferred_output`` and ``non_preferred_output`` (OpenAI documentation, "Direct preference
  optimization").
- ``conversations`` of ``from`` and ``value``, with ``system``, and for a pair ``chosen`` and ``rejected`` of that form
  (ShareGPT; LLaMA-Factory's documentation, "Data preparation", says how tools are called in it).
- ``instruction``, ``input`` and ``output``, with ``system`` and ``history``, a list of earlier questions and answers;
  for a pair ``chosen`` and ``rejected`` (Alpaca, as LLaMA-Factory reads it).
"""

from collections.abc import Mapping
from typing import Any

import orjson

from lightning_trainer.dataset.rows import Row
from lightning_trainer.errors import DatasetError

_ROLES = {"human": "user", "gpt": "assistant", "function_call": "assistant", "observation": "tool"}
"""Chat messages' roles by ShareGPT's names; other names are the same in both."""
_SIDES = ("chosen", "rejected")


def with_chat_columns(row: Mapping[str, Any], where: str) -> Row:
    """Return a row with ``messages``, or ``prompt`` and its answers, if it has one of the forms above; else unchanged.

    Raises:
        DatasetError: the row's content does not have the form that its columns promise.
    """
    if any(row.get(name) for name in ("prompt", "messages", "input_ids", "prompt_ids")):
        return dict(row)
    if row.get("preferred_output"):
        return {**row, **_preference(row, where)}
    if row.get("conversations"):
        return {**row, **_conversation(row, where)}
    if row.get("instruction"):
        return {**row, **_instruction(row)}
    return dict(row)


def _preference(row: Mapping[str, Any], where: str) -> Row:
    asked = row.get("input")
    if not isinstance(asked, Mapping):
        raise DatasetError(f"{where}: it has a preferred_output and no input with messages; add it")
    return {
        "prompt": asked.get("messages"),
        "tools": asked.get("tools"),
        "chosen": row["preferred_output"],
        "rejected": row.get("non_preferred_output"),
    }


def _conversation(row: Mapping[str, Any], where: str) -> Row:
    said = row["conversations"]
    if not isinstance(said, list):
        raise DatasetError(f"{where}: its conversations are not a list; make it one of objects with from and value")
    messages = [*_system(row), *(_message(one, where) for one in said)]
    sides = {name: _message(row[name], where) for name in _SIDES if isinstance(row.get(name), Mapping)}
    return {"prompt": messages, **sides} if sides else {"messages": messages}


def _message(said: Any, where: str) -> Row:
    if not isinstance(said, Mapping) or not isinstance(said.get("value"), str):
        raise DatasetError(f"{where}: its conversations hold {said!r}, which is not an object with from and value")
    role = str(said.get("from"))
    message: Row = {"role": _ROLES.get(role, role), "content": said["value"]}
    if said.get("weight") is not None:
        message["weight"] = said["weight"]
    if role == "function_call":
        try:
            called = orjson.loads(said["value"])
        except orjson.JSONDecodeError as error:
            raise DatasetError(f"{where}: a function_call is not JSON ({error}); correct it") from error
        message |= {"content": "", "tool_calls": called if isinstance(called, list) else [called]}
    return message


def _instruction(row: Mapping[str, Any]) -> Row:
    asked = "\n\n".join(one for one in (row["instruction"], row.get("input")) if isinstance(one, str) and one)
    earlier = [
        {"role": role, "content": said}
        for turn in row.get("history") or ()
        for role, said in zip(("user", "assistant"), turn, strict=False)
    ]
    return {
        "prompt": [*_system(row), *earlier, {"role": "user", "content": asked}],
        "completion": row.get("output"),
    }


def _system(row: Mapping[str, Any]) -> list[Row]:
    told = row.get("system")
    return [{"role": "system", "content": told}] if isinstance(told, str) and told else []
