"""One version of a prompt, as the daemon and the environment variable ``LIGHTNING_PROMPTS`` give it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from lightning_instrumentation.failures import failures

LONGEST_TEXT: Final = 65_536
"""In characters."""
PROMPTS: Final = "LIGHTNING_PROMPTS"
"""Environment variable for a program: ``{"clerk": {"version": 7, "text": "..."}}``."""


@dataclass(frozen=True, slots=True)
class PromptVersion:
    """One text of a prompt."""

    version: int
    text: str


def read_version(document: Any) -> PromptVersion:
    """Return the version in a JSON object with ``version`` and ``text``.

    Raises:
        ValueError: it is not such an object.
    """
    number, text = (document.get(key) if isinstance(document, dict) else None for key in ("version", "text"))
    if type(number) is not int or number < 0 or not isinstance(text, str) or not 1 <= len(text) <= LONGEST_TEXT:
        raise ValueError(f"a version has a number and a text of 1 to {LONGEST_TEXT:,} characters")
    return PromptVersion(number, text)


@lru_cache(maxsize=4)
def versions_of_environment(text: str) -> Mapping[str, PromptVersion]:
    """Return the versions in the value of ``LIGHTNING_PROMPTS``; none if it is malformed, which is reported once."""
    if not text:
        return {}
    try:
        return {str(name): read_version(told) for name, told in json.loads(text).items()}
    except (ValueError, AttributeError, RecursionError) as error:
        failures.note(
            "prompts-malformed",
            f'{PROMPTS} is not an object like {{"clerk": {{"version": 7, "text": "..."}}}} and is not used',
            error=error,
        )
        return {}
