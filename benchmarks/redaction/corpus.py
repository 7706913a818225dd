"""Code, JSON, and prose without secrets: files of the installed packages, in texts of a message's length."""

import random
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

KINDS = {
    "code": (".py", ".pyi", ".js", ".cpp", ".h"),
    "json": (".json", ".jsonl", ".ipynb"),
    "prose": (".md", ".rst", ".txt", "METADATA"),
}
_LENGTH = 2000
"""Characters of a text."""
_LARGEST_FILE = 400_000
_WITH_SECRETS = ("/awscli/examples/",)
"""Documents that show whole private keys, session tokens, and the like."""


def texts(kind: str, limit: int, seed: int = 0) -> list[str]:
    """Return at most ``limit`` texts of a kind, from as many files as there are."""
    draw = random.Random(seed)
    files = [path for path in _files() if path.name.endswith(KINDS[kind])]
    draw.shuffle(files)
    found: list[str] = []
    for path in files:
        if len(found) >= limit:
            break
        found += list(_pieces(path))[: max(1, limit // 200)]
    return found[:limit]


def _pieces(path: Path) -> Iterator[str]:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return
    for at in range(0, len(text), _LENGTH):
        piece = text[at : at + _LENGTH]
        if piece.strip():
            yield piece


@cache
def _files() -> list[Path]:
    """Return all files of the right kinds; listing them takes seconds."""
    names = tuple(end for ends in KINDS.values() for end in ends)
    return [
        path
        for folder in _folders()
        for path in sorted(folder.rglob("*"))
        if path.name.endswith(names) and not any(part in str(path) for part in _WITH_SECRETS)
    ]


def _folders() -> list[Path]:
    paths = sysconfig.get_paths()
    return [Path(paths["purelib"]), Path(paths["stdlib"])]
