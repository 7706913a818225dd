"""Prompts that programs get by name: their versions, what each earned, and how each differs from its parent."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_trainer.dashboard.pages.asking import Asked, PageError
from lightning_trainer.dashboard.site import Site
from lightning_trainer.store import prompts as table
from lightning_trainer.store.prompts import PromptVersion

_PAGE = 50


async def prompts(site: Site, asked: Asked) -> dict[str, Any]:
    """Return a page of one prompt's versions, newest first, and the names of all prompts."""
    summaries = await site.store.scan(table.names)
    names = [one.name for one in summaries]
    name = asked.text("prompt") or (names[0] if names else None)
    if name is None:
        return {"name": None, "names": [], "rows": []}
    before = asked.number("before", 1)
    found = await site.store.scan(lambda connection: table.select(connection, name, before=before, newest=_PAGE))
    if not found and name not in names:
        raise PageError(table.no_prompt(name), 404)
    by_number = {one.version: one for one in found}
    return {
        "name": name,
        "names": names,
        "stages": list(dict.fromkeys(stage for one in found for stage in one.scores)),
        "rows": [(one, list(_changes(by_number, one))) for one in reversed(found)],
        "older": asked.link("/prompts", before=found[0].version) if len(found) == _PAGE and found[0].version else None,
    }


def _changes(known: Mapping[int, PromptVersion], version: PromptVersion) -> Iterator[tuple[str, str]]:
    """Yield the lines of a version with ``+``, ``-`` or a space: added to its parent, removed from it, or unchanged. If
    the parent is on another page, or there is none, all lines count as unchanged."""
    parent = None if version.parent is None else known.get(version.parent)
    after = version.text.splitlines()
    before = after if parent is None else parent.text.splitlines()
    yield from _marked(before, after)


def _marked(before: Sequence[str], after: Sequence[str]) -> Iterator[tuple[str, str]]:
    for kind, from_line, to_line, first, last in difflib.SequenceMatcher(None, before, after).get_opcodes():
        if kind == "equal":
            yield from ((" ", line) for line in after[first:last])
        else:
            yield from (("-", line) for line in before[from_line:to_line])
            yield from (("+", line) for line in after[first:last])
