"""Anthropic's tools as function tools: the caller's own, and those that Anthropic defines and the caller runs.

For the latter, requests contain only a type and a name, because Anthropic's models know the rest; our models get the
published input schema. Tools that run at Anthropic are refused by name. Source: Anthropic API reference, bash, text
editor and memory tools.
"""

from collections.abc import Mapping
from typing import Any

from lightning_trainer.gateway.errors import RefusalError

_TEXT = {"type": "string"}
_LINE = {"type": "integer"}
_RANGE = {"type": "array", "items": {"type": "integer"}, "description": "First and last line, from 1; -1 is the end."}


def _schema(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required}


def _commands(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def _editor(inserted: str, *more_commands: str) -> tuple[str, dict[str, Any]]:
    """Return a text editor tool; ``inserted`` is the field with the text to insert, which depends on its version."""
    schema = _schema(
        ["command", "path"],
        command=_commands("view", "create", "str_replace", "insert", *more_commands),
        path={**_TEXT, "description": "Absolute path of a file, or of a folder to view."},
        view_range=_RANGE,
        file_text={**_TEXT, "description": "Content of the file to create."},
        old_str={**_TEXT, "description": "What to replace; it has to be in the file exactly once."},
        new_str={**_TEXT, "description": "What to put in its place."},
        insert_line={**_LINE, "description": "Line after which to insert; 0 is the beginning."},
    )
    schema["properties"].setdefault(inserted, {**_TEXT, "description": "What to insert."})
    return "View, create and edit text files.", schema


_BASH = (
    "Run a command in a bash session that stays open between calls.",
    _schema([], command={**_TEXT, "description": "Required unless restart is true."}, restart={"type": "boolean"}),
)
_MEMORY = (
    "Keep notes in files below /memories, which are there again in later conversations.",
    _schema(
        ["command"],
        command=_commands("view", "create", "str_replace", "insert", "delete", "rename"),
        path={**_TEXT, "description": "Path below /memories; for every command but rename."},
        view_range=_RANGE,
        file_text={**_TEXT, "description": "Content of the file to create."},
        old_str={**_TEXT, "description": "What to replace."},
        new_str={**_TEXT, "description": "What to put in its place."},
        insert_line={**_LINE, "description": "Line after which to insert; 0 is the beginning."},
        insert_text={**_TEXT, "description": "What to insert."},
        old_path={**_TEXT, "description": "What to rename."},
        new_path={**_TEXT, "description": "Its new name."},
    ),
)
_RUN_BY_THE_CALLER: Mapping[str, tuple[str, dict[str, Any]]] = {
    "bash_20241022": _BASH,
    "bash_20250124": _BASH,
    "text_editor_20241022": _editor("new_str", "undo_edit"),
    "text_editor_20250124": _editor("new_str", "undo_edit"),
    "text_editor_20250429": _editor("new_str"),
    "text_editor_20250728": _editor("insert_text"),
    "memory_20250818": _MEMORY,
}
_BY_SCHEMA = "send it as a tool of your own, with an input_schema"


def function_tool(tool: Any) -> dict[str, Any]:
    """Return a tool as a chat completions function.

    Raises:
        RefusalError: it runs at Anthropic, or is unknown (400).
    """
    kind: Any = tool.get("type") or "custom" if isinstance(tool, dict) else None
    if kind in _RUN_BY_THE_CALLER:
        description, parameters = _RUN_BY_THE_CALLER[kind]
        function = {"name": tool.get("name"), "description": description, "parameters": parameters}
    elif kind == "custom":
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
        function |= {name: tool[name] for name in ("description", "strict") if tool.get(name) is not None}
    elif isinstance(kind, str) and kind.startswith(("computer_", "browser_")):
        raise RefusalError(400, f"the tool {kind!r} has no schema that is published: {_BY_SCHEMA}", param="tools")
    else:
        named = repr(kind) if not isinstance(tool, dict) or tool.get("name") in (None, kind) else _both(tool, kind)
        raise RefusalError(
            400, f"the tool {named} is not supported here: it runs at Anthropic; {_BY_SCHEMA}", param="tools"
        )
    return {"type": "function", "function": function}


def _both(tool: Mapping[str, Any], kind: object) -> str:
    return f"{tool['name']!r} (type {kind!r})"
