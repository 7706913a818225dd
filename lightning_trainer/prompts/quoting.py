"""Versions of prompts that quote attempts: what is forgotten may stand in them, word for word, and is still served."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_trainer.retokenize.texts import words_of
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables.spans import select_of_attempts

_SHORTEST = 8
"""Characters that a line needs to tell where it comes from."""
_AT_ONCE = 50
"""Attempts whose spans are in memory at a time."""
_ABOUT_THE_WORK = ("system", "developer")
"""Roles of messages that hold the prompts themselves."""


def quoting(connection: Connection, attempt_ids: Sequence[str]) -> list[str]:
    """Return the versions, like ``clerk@v7``, by name and number, whose text or reason has a line that was said in
    these attempts and that the default in the code does not have. Lines of fewer than 8 characters do not count."""
    versions = connection.execute(
        """SELECT one.name, one.version, one.text || '\n' || coalesce(one.reason, ''), code.text FROM prompts AS one
           LEFT JOIN prompts AS code ON code.name = one.name AND code.root = one.root AND code.made_by = 'code'
           WHERE one.made_by != 'code' ORDER BY one.name, one.version"""
    ).fetchall()
    found: set[tuple[str, int]] = set()
    for start in range(0, len(attempt_ids) if versions else 0, _AT_ONCE):
        lines = _lines_of(connection, attempt_ids[start : start + _AT_ONCE])
        for name, version, text, default in versions:
            # Braces of an example are doubled for a program that fills its text in with str.format.
            plain = text.replace("{{", "{").replace("}}", "}")
            if any((line in text or line in plain) and line not in (default or "") for line in lines):
                found.add((name, version))
    return [f"{name}@v{version}" for name, version in sorted(found)]


def _lines_of(connection: Connection, attempt_ids: Sequence[str]) -> set[str]:
    lines: set[str] = set()
    for words in words_of(select_of_attempts(connection, attempt_ids)).values():
        for message in (*words.prompt, words.answer):
            if message is not None and message.get("role") not in _ABOUT_THE_WORK:
                lines.update(line.strip() for text in _texts(message.get("parts")) for line in text.splitlines())
    return {line for line in lines if len(line) >= _SHORTEST}


def _texts(part: Any) -> list[str]:
    """Return all that is said in a part of a message: its text, a tool's arguments and results, also as their JSON."""
    if isinstance(part, str):
        return [part]
    if isinstance(part, Mapping):
        said = [part.get(key) for key in ("content", "arguments", "response")]
        objects = [one for one in said if isinstance(one, dict)]
        as_json = [json.dumps(one, ensure_ascii=False, sort_keys=True, default=str) for one in objects]
        return [*as_json, *(text for one in said for text in _texts(one))]
    if isinstance(part, Sequence):
        return [text for one in part for text in _texts(one)]
    return []
