"""``lt.prompt("clerk", "You are a clerk.")``: the served version of a text, which may be the default itself.

A version that a prompt search gives an attempt comes first: in this process (``serving_prompts``) or, for a program
that the search started, in the environment. Then comes the version that the daemon serves. Which version a program got
is recorded in a span of its own, once for each attempt, because the program may have no other span that could have it
as an attribute.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.prompts.live import live
from lightning_instrumentation.prompts.version import LONGEST_TEXT, PROMPTS, PromptVersion, versions_of_environment
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import current, use_scope
from lightning_instrumentation.spans import lifecycle

if TYPE_CHECKING:
    from lightning_instrumentation.spans.tracing import Tracer

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def prompt(name: str, default: str) -> str:
    """Return the text of the prompt's served version; ``default`` if there is no other version, or no daemon.

    The first use of a text in a process, or its first use after a pause, waits for the daemon: milliseconds or, while
    no daemon answers, at most a second in total over all texts. Any other use returns at once the version that is
    known, which is at most some seconds old. Fill in placeholders afterwards, in the text that is returned.

    Args:
        name: 1 to 64 letters, digits, ``_``, ``.`` or ``-``, a letter or digit first.
        default: the text in the code. Versions belong to this text: a changed default has none at first.

    Raises:
        TypeError: name or default is not a string.
        ValueError: the name is not of the form above.
    """
    if not isinstance(name, str) or not isinstance(default, str):
        raise TypeError(
            f"lt.prompt takes a name and a text, got {type(name).__name__} and {type(default).__name__}: write it as "
            'lt.prompt("name", "the text")'
        )
    check_name(name)
    version = guarded("prompt", _version, name, default)
    if version is None:
        return default
    guarded("prompt", _record, name, version.version)
    return version.text


def check_name(name: str) -> None:
    """Raise ValueError if ``name`` cannot name a prompt."""
    if _NAME.fullmatch(name) is None:
        raise ValueError(
            f"{name!r} cannot name a prompt: write 1 to 64 letters, digits, '_', '.' or '-', a letter or digit first"
        )


def serving_prompts(prompts: Mapping[str, PromptVersion]) -> use_scope:
    """Give the code of a ``with`` block these versions, whatever the daemon serves."""
    before = current()
    return use_scope(replace(before, prompts={**(before.prompts or {}), **prompts}))


def _version(name: str, default: str) -> PromptVersion | None:
    given = (current().prompts or {}).get(name) or versions_of_environment(os.environ.get(PROMPTS, "")).get(name)
    if given is not None:
        return given
    started = runtime(again=True)
    if started is None:
        return None
    if not 1 <= len(default) <= LONGEST_TEXT:
        failures.note(
            "prompt-too-long",
            f"the default of lt.prompt({name!r}) has {len(default):,} characters, and versions have 1 to "
            f"{LONGEST_TEXT:,}: it is used as it is",
        )
        return None
    return live.version(started.router.access, name, default, may_be_sent=started.editor.leaves(default))


def _record(name: str, version: int) -> None:
    started = runtime()
    if started is None or current().uncaptured:
        return
    from lightning_instrumentation.spans.tracing import identity_attributes  # the client has imported it

    identity = identity_attributes()
    attempt_id = identity.get(semconv.ATTEMPT_ID) or identity.get(semconv.ROLLOUT_ID)
    _record_once(started.tracer, attempt_id, name, version)


@lru_cache(maxsize=4096)
def _record_once(tracer: Tracer, attempt_id: str | None, name: str, version: int) -> None:
    """Write the span at the first call with these arguments: a program may ask for its prompt in a hot loop.

    ``attempt_id`` is None outside of attempts: the span is then written once for each process.
    """
    used = {semconv.PROMPT_NAME: name, semconv.PROMPT_VERSION: version}
    lifecycle.end(lifecycle.begin(tracer, f"prompt {name}", used))
