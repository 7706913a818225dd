"""What the versions of a prompt earn in live attempts: those that are no search's, no evaluation's and no dataset's,
and that nobody took out.

It is no experiment: versions are served one after the other, to tasks that nobody has drawn.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import fmean

from lightning_instrumentation import semconv

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.otlp.span_codec import decode_span
from lightning_trainer.prompts.examples import reward_of
from lightning_trainer.report import mean_interval
from lightning_trainer.samples.rewards.reward_table import given_rewards
from lightning_trainer.samples.transitions.deduplication import deduplicate
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as table
from lightning_trainer.store.tables.spans import select_of_attempts
from lightning_trainer.types import Attempt, AttemptState

_LOOKED_AT = 10_000
"""Newest live attempts, of any program, among which those of a prompt are looked for."""
MOST_OF_VERSION = 200
"""Newest attempts of a version that are read."""
_MOST = 2_000
"""Attempts of all versions that are read: versions share them."""
_AT_ONCE = 50
"""Attempts whose spans are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Earned:
    """What one version earned in its newest live attempts."""

    version: int
    attempts: int
    failed: int
    rewarded: int
    """Attempts that have a reward by now: feedback may come later."""
    mean: float | None
    """Of the rewards; None if there is none."""
    interval: tuple[float, float] | None
    """95 %, of the mean; None if the rewards are too few, or all alike."""
    more: bool = False
    """Whether older attempts with the version were not read."""


def earned_live(connection: Connection, name: str) -> dict[int, Earned]:
    """Return by version what was earned in the newest live attempts that asked for the prompt once they had begun.

    At most 200 attempts of a version are read, of the newest 10,000 of all programs, and fewer of each where there are
    very many versions; a version of which none is read is left out. An attempt that got several versions of the prompt
    says nothing of either.
    """
    of_version: dict[int, list[str]] = {}
    for attempt_id, version in _versions(connection, name).items():
        of_version.setdefault(version, []).append(attempt_id)
    read = _shared(of_version)
    known: dict[str, Attempt] = {}
    rewards: dict[str, float] = {}
    for start in range(0, len(read), _AT_ONCE):
        ids = read[start : start + _AT_ONCE]
        chunk = {one.attempt_id: one for one in table.select(connection, attempt_ids=ids)}
        known |= chunk
        reading = read_spans(select_of_attempts(connection, ids))
        for attempt_id, given in given_rewards(reading.evaluations, deduplicate(reading.calls), chunk).items():
            if (reward := reward_of(given)) is not None:
                rewards[attempt_id] = reward
    found: dict[int, Earned] = {}
    for version, own in sorted(of_version.items()):
        if attempts := [known[one] for one in own if one in known]:
            found[version] = _earned(version, attempts, rewards, more=len(attempts) < len(own))
    return found


def _shared(of_version: Mapping[int, Sequence[str]]) -> list[str]:
    """Return the attempts that are read: the newest of each version, then the next of each, and so on."""
    turns = zip_longest(*(own[:MOST_OF_VERSION] for own in of_version.values()))
    return [one for turn in turns for one in turn if one is not None][:_MOST]


def _versions(connection: Connection, name: str) -> dict[str, int]:
    """Return the one version that each of the newest live attempts ran with, newest first."""
    rows = connection.execute(
        """SELECT newest.attempt_id, spans.body, spans.scope FROM
               (SELECT attempt_id, ended_ns FROM attempts
                WHERE ended_ns IS NOT NULL AND coalesce(mode, 'train') = 'train'
                AND NOT EXISTS (SELECT 1 FROM drops WHERE drops.attempt_id = attempts.attempt_id)
                ORDER BY ended_ns DESC LIMIT ?) AS newest
           JOIN spans ON spans.attempt_id = newest.attempt_id WHERE spans.name = ?
           ORDER BY newest.ended_ns DESC, newest.attempt_id""",
        (_LOOKED_AT, f"prompt {name}"),
    )
    found: dict[str, set[int]] = {}
    for attempt_id, body, scope in rows:
        told = decode_span(body, scope=scope, resource={}).attributes
        version = told.get(semconv.PROMPT_VERSION)
        if told.get(semconv.PROMPT_NAME) == name and type(version) is int:
            found.setdefault(attempt_id, set()).add(version)
    return {attempt_id: min(versions) for attempt_id, versions in found.items() if len(versions) == 1}


def _earned(version: int, attempts: Sequence[Attempt], rewards: dict[str, float], *, more: bool) -> Earned:
    own = [rewards[one.attempt_id] for one in attempts if one.attempt_id in rewards]
    failed = sum(one.state is AttemptState.FAILED for one in attempts)
    return Earned(version, len(attempts), failed, len(own), fmean(own) if own else None, mean_interval(own), more)
