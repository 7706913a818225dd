"""Every setting of lightning.toml is on a page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from lightning_trainer.config import Config

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("*.md"))


def sections(kind: Any, seen: set[type[BaseModel]]) -> Iterator[type[BaseModel]]:
    """The sections in a field of this type, with the sections in those."""
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        for part in get_args(kind):
            yield from sections(part, seen)
    elif kind not in seen:
        seen.add(kind)
        yield kind
        for field in kind.model_fields.values():
            yield from sections(field.annotation, seen)


def test_every_setting_is_on_a_page():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    code = "\n".join(re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL) + re.findall(r"`([^`\n]+)`", text))
    named = set(re.findall(r"\w+", code))
    settings = [(kind.__name__, name) for kind in sections(Config, set()) for name in kind.model_fields]
    assert [setting for setting in settings if setting[1] not in named] == []
