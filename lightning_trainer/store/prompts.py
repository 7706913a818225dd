"""Prompts: texts in users' code by name, and their versions, of which one is live for each default in the code.

A version's ``root`` is the SHA-256 of the default that it derives from. What a person wrote last counts: a changed
default starts a line of its own, and live versions of the earlier default are not served in its place. Retention
deletes no versions. Functions that write must run in the writer's transaction, which excludes those of other daemons,
so that numbers do not collide, and a new root is registered only once.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, fields, replace
from enum import StrEnum
from typing import Any

from lightning_instrumentation.redaction.rules import RedactionError, Redactor

from lightning_trainer.errors import PromptError, UnknownVersionError
from lightning_trainer.store.connection import ALL, Connection

NAME = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
"""The form of a prompt's name, as a whole."""
LONGEST_TEXT = 65_536
"""In characters."""
LONGEST_REASON = 10_000
"""In characters."""
MOST_NAMES = 1_000
MOST_ROOTS = 1_000
"""Per name: a program reaches more only if it puts a new default together for each call."""
MOST_VERSIONS = 10_000
"""Per name."""
MOST_STAGES = 32
"""Per version, in its scores."""


class PromptState(StrEnum):
    """Whether a version is proposed, in use, or no longer in use."""

    CANDIDATE = "candidate"
    LIVE = "live"
    RETIRED = "retired"


@dataclass(frozen=True, slots=True)
class PromptVersion:
    """One text of a prompt."""

    name: str
    version: int
    """Counted for each name from 0."""
    root: str
    """SHA-256, hex, of the default in the code that it derives from."""
    text: str
    parent: int | None
    """The version that it was made from; None for the default itself."""
    state: PromptState
    made_by: str
    """``code``, ``reflect``, ``examples`` or ``person``."""
    reason: str | None
    scores: Mapping[str, Mapping[str, float]]
    """By stage (``validation``, ``held-out``): the ``mean``, and the number of ``tasks``."""
    created_ns: int

    @property
    def label(self) -> str:
        """Return name and version, as ``clerk@v7``."""
        return f"{self.name}@v{self.version}"


@dataclass(frozen=True, slots=True)
class PromptSummary:
    """One prompt."""

    name: str
    live: tuple[int, ...]
    """Its live versions, ascending: one for each default that the code has or had."""
    versions: int
    """How many it has."""


_FIELDS = tuple(field.name for field in fields(PromptVersion))
_COLUMNS = ", ".join(_FIELDS)
_SELECT = f"SELECT {_COLUMNS} FROM prompts WHERE name = ?"


def no_prompt(name: str) -> str:
    """Return the error message for a name that no prompt has."""
    return f"there is no prompt {name!r}: a program that uses it registers it"


def root_of(text: str) -> str:
    """Return the root of a default: the SHA-256 of its UTF-8, hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def check_text(text: str) -> None:
    """Refuse a text that cannot be stored unchanged, on either database.

    Raises:
        PromptError: it is empty, too long, or not text.
    """
    if not 1 <= len(text) <= LONGEST_TEXT:
        raise PromptError(f"the text of a prompt has {len(text):,} characters: give it 1 to {LONGEST_TEXT:,}")
    if "\0" in text or any("\ud800" <= one <= "\udfff" for one in text):
        raise PromptError("the text of a prompt has character 0 or half a character (a lone surrogate): leave it out")


def redacted(text: str, redact: Redactor) -> str | None:
    """Return the text as the redaction rules let it be recorded; None if a rule failed."""
    try:
        return redact(text)
    except RedactionError:
        return None


def check_and_redact(name: str, text: str, reason: str | None, redact: Redactor) -> str | None:
    """Return a version's reason as it may be recorded.

    Raises:
        PromptError: the rules would change the text, which would then no longer be what was written or tried.
    """
    if redacted(text, redact) != text:
        raise PromptError(
            f"this version of prompt {name!r} is not kept, as [daemon] redact would change it: leave out what looks "
            "like a secret"
        )
    return None if reason is None else redacted(reason, redact)


def register(connection: Connection, name: str, root: str, text: str, now_ns: int) -> PromptVersion:
    """Return the live version of a root; for a new root, its default becomes a live version first.

    Raises:
        PromptError: the name or text is not valid, the root is not the text's, or there are too many prompts, roots, or
            versions.
    """
    found = live(connection, name, root)
    if found is not None:
        return found
    check_text(text)
    if root != root_of(text):
        raise PromptError(f"root {root} is not the SHA-256 of the default, which is {root_of(text)}")
    known = _of_text(connection, name, root, text)
    if known is not None:  # a repaired store may have lost the live version
        return use(connection, name, known.version)
    (roots,) = connection.execute("SELECT count(*) FROM prompts WHERE name = ? AND state = 'live'", (name,)).fetchone()
    if roots >= MOST_ROOTS:
        raise PromptError(
            f"prompt {name!r} has {roots:,} defaults already: give it a fixed text, and put in what changes afterwards"
        )
    number = _next_version(connection, name)
    made = PromptVersion(name, number, root, text, None, PromptState.LIVE, "code", None, {}, now_ns)
    return _insert(connection, made)


def live(connection: Connection, name: str, root: str) -> PromptVersion | None:
    """Return the live version of a root; None if the root is not known."""
    row = connection.execute(f"{_SELECT} AND root = ? AND state = 'live'", (name, root)).fetchone()
    return None if row is None else _read(row)


def add(
    connection: Connection, name: str, text: str, parent: int, made_by: str, reason: str | None, now_ns: int
) -> PromptVersion:
    """Add a candidate with its parent's root; if a version of that root has the same text, return that one.

    Raises:
        UnknownVersionError: there is no such parent.
        PromptError: the text or reason cannot be kept, or there are too many versions.
    """
    check_text(text)
    if reason is not None and len(reason) > LONGEST_REASON:
        raise PromptError(f"the reason has {len(reason):,} characters: give it at most {LONGEST_REASON:,}")
    root = select_one(connection, name, parent).root
    known = _of_text(connection, name, root, text)
    if known is not None:
        return known
    number = _next_version(connection, name)
    made = PromptVersion(name, number, root, text, parent, PromptState.CANDIDATE, made_by, reason, {}, now_ns)
    return _insert(connection, made)


def put_scores(
    connection: Connection, name: str, version: int, scores: Mapping[str, Mapping[str, float]]
) -> PromptVersion:
    """Write the scores of some stages, replacing earlier scores of these stages; return the version.

    Raises:
        UnknownVersionError: there is no such version.
        PromptError: the version would have scores of too many stages.
    """
    found = select_one(connection, name, version)
    merged = {**found.scores, **scores}
    if len(merged) > MOST_STAGES:
        raise PromptError(f"{found.label} would have scores of {len(merged)} stages: {MOST_STAGES} are kept at most")
    connection.execute(
        "UPDATE prompts SET scores = ? WHERE name = ? AND version = ?",
        (json.dumps({stage: dict(score) for stage, score in merged.items()}), name, version),
    )
    return replace(found, scores=merged)


def use(connection: Connection, name: str, version: int) -> PromptVersion:
    """Make a version live, and retire the version of its root that was live; return the new live version.

    Raises:
        UnknownVersionError: there is no such version.
    """
    chosen = select_one(connection, name, version)
    connection.execute(
        "UPDATE prompts SET state = 'retired' WHERE name = ? AND root = ? AND state = 'live'", (name, chosen.root)
    )
    connection.execute("UPDATE prompts SET state = 'live' WHERE name = ? AND version = ?", (name, version))
    return replace(chosen, state=PromptState.LIVE)


def select(
    connection: Connection, name: str, *, before: int | None = None, newest: int | None = None
) -> list[PromptVersion]:
    """Return the versions of a prompt in ascending order: those before version ``before`` and, of these, only the
    ``newest`` ones; by default all."""
    rows = connection.execute(
        f"{_SELECT} AND version < ? ORDER BY version DESC LIMIT ?",
        (name, 2**62 if before is None else before, ALL if newest is None else newest),
    )
    return sorted(map(_read, rows), key=lambda one: one.version)


def select_one(connection: Connection, name: str, version: int) -> PromptVersion:
    """Return one version.

    Raises:
        UnknownVersionError: there is no version of that number, or no such prompt.
    """
    row = connection.execute(f"{_SELECT} AND version = ?", (name, version)).fetchone()
    if row is not None:
        return _read(row)
    (last,) = connection.execute("SELECT max(version) FROM prompts WHERE name = ?", (name,)).fetchone()
    if last is None:
        raise UnknownVersionError(no_prompt(name))
    raise UnknownVersionError(f"prompt {name!r} has no version {version}: its versions are 0 to {last}")


def names(connection: Connection) -> list[PromptSummary]:
    """Return all prompts by name."""
    of_name: dict[str, list[int]] = {}
    for name, version in connection.execute("SELECT name, version FROM prompts WHERE state = 'live' ORDER BY version"):
        of_name.setdefault(name, []).append(version)
    rows = connection.execute("SELECT name, count(*) FROM prompts GROUP BY name ORDER BY name")
    return [PromptSummary(name, tuple(of_name.get(name, ())), number) for name, number in rows]


def _next_version(connection: Connection, name: str) -> int:
    """Return the number of a prompt's next version; raises PromptError: the name is invalid, or there are too many."""
    if re.fullmatch(NAME, name) is None:
        raise PromptError(
            f"{name!r} cannot name a prompt: write 1 to 64 letters, digits, '_', '.' or '-', a letter or digit first"
        )
    number, last = connection.execute("SELECT count(*), max(version) FROM prompts WHERE name = ?", (name,)).fetchone()
    if number >= MOST_VERSIONS:
        raise PromptError(f"prompt {name!r} has {number:,} versions already: go on with it under another name")
    if last is not None:
        return last + 1
    (prompts,) = connection.execute("SELECT count(DISTINCT name) FROM prompts").fetchone()
    if prompts >= MOST_NAMES:
        raise PromptError(f"there are {prompts:,} prompts already: give {name!r} the name of one of them")
    return 0


def _insert(connection: Connection, made: PromptVersion) -> PromptVersion:
    row = (*astuple(made)[:-2], json.dumps(dict(made.scores)), made.created_ns)
    connection.execute(f"INSERT INTO prompts({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})", row)
    return made


def _of_text(connection: Connection, name: str, root: str, text: str) -> PromptVersion | None:
    """Return the first version of a root with this text."""
    row = connection.execute(
        f"{_SELECT} AND root = ? AND text = ? ORDER BY version LIMIT 1", (name, root, text)
    ).fetchone()
    return None if row is None else _read(row)


def _read(row: Any) -> PromptVersion:
    name, version, root, text, parent, state, made_by, reason, scores, created_ns = row
    return PromptVersion(
        name, version, root, text, parent, PromptState(state), made_by, reason, json.loads(scores), created_ns
    )
