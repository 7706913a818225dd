"""What the versions of a prompt earn in live attempts: those that belong to no search, evaluation or dataset, and that
nobody took out.

This is not an experiment: versions are served one after the other, to tasks that were not drawn at random.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from statistics import fmean
from typing import NamedTuple

from lightning_instrumentation import semconv

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.otlp.span_codec import decode_span
from lightning_trainer.prompts.examples import reward_of
from lightning_trainer.report import mean_interval
from lightning_trainer.samples.rewards.reward_table import given_rewards
from lightning_trainer.samples.transitions.deduplication import deduplicate
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import attempts as table
from lightning_trainer.store.tables.spans import select_for_rewards
from lightning_trainer.types import AttemptState

_LOOKED_AT = 10_000
"""Newest live attempts, of any program, among which those of a prompt are looked for."""
MOST_OF_VERSION = 200
"""Newest attempts of a version that are read."""
_MOST = 1_000
"""Attempts that are read of all versions together."""
_AT_ONCE = 50
"""Attempts whose spans are in memory at a time."""
_KEPT_S = 5.0
"""How long an answer is kept: the same question within this time, or while the answer is read, gets the same one."""


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
    """Of the mean, 95 %; None if the rewards are too few, or all alike."""
    more: bool = False
    """Whether older attempts with the version were not read."""


class LiveEarned:
    """Reads what :func:`earned_live` returns from a store that others read too: in pieces, between which others have
    their turn, for one question at a time, and not again for a question that is repeated."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._reading = asyncio.Lock()
        self._name: str | None = None
        self._read_at = 0.0
        self._earned: dict[int, Earned] = {}
        """The newest answer, about the prompt of that name."""

    async def get(self, name: str) -> dict[int, Earned]:
        """Return what the versions of a prompt had earned at most some seconds ago.

        Raises:
            StoreError: the store cannot be read.
        """
        async with self._reading:
            if name != self._name or time.monotonic() - self._read_at >= _KEPT_S:
                self._earned = await self._read(name)
                self._name, self._read_at = name, time.monotonic()
            return self._earned

    async def _read(self, name: str) -> dict[int, Earned]:
        of_version = await self._store.scan(lambda connection: _of_versions(connection, name))
        outcomes: dict[str, _Outcome] = {}
        for ids in _pieces(of_version):
            outcomes |= await self._store.scan(partial(_outcomes, attempt_ids=ids))
        return _summed(of_version, outcomes)


def earned_live(connection: Connection, name: str) -> dict[int, Earned]:
    """Return by version what was earned in the newest live attempts that asked for the prompt once they had begun.

    At most 200 attempts of a version are read, of the newest 10,000 of all programs, and fewer of each if there are
    very many versions; a version of which none is read is left out. An attempt that got several versions of the prompt
    says nothing about any of them.
    """
    of_version = _of_versions(connection, name)
    outcomes: dict[str, _Outcome] = {}
    for ids in _pieces(of_version):
        outcomes |= _outcomes(connection, ids)
    return _summed(of_version, outcomes)


def _of_versions(connection: Connection, name: str) -> dict[int, list[str]]:
    """Return the attempts by version, newest first."""
    of_version: dict[int, list[str]] = {}
    for attempt_id, version in _versions(connection, name).items():
        of_version.setdefault(version, []).append(attempt_id)
    return of_version


def _pieces(of_version: Mapping[int, Sequence[str]]) -> Iterator[list[str]]:
    read = _shared(of_version)
    for start in range(0, len(read), _AT_ONCE):
        yield read[start : start + _AT_ONCE]


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


class _Outcome(NamedTuple):
    failed: bool
    reward: float | None


def _outcomes(connection: Connection, attempt_ids: Sequence[str]) -> dict[str, _Outcome]:
    attempts = {one.attempt_id: one for one in table.select(connection, attempt_ids=attempt_ids)}
    reading = read_spans(select_for_rewards(connection, attempt_ids, calls=False))
    if any(one.span_id is not None or one.response_id is not None for one in reading.evaluations):
        # Such an evaluation scores a call, or the attempt if it names no call: only the calls tell which.
        reading = read_spans(select_for_rewards(connection, attempt_ids, calls=True))
    given = given_rewards(reading.evaluations, deduplicate(reading.calls), attempts)
    return {
        attempt_id: _Outcome(attempt.state is AttemptState.FAILED, reward_of(given.get(attempt_id, {})))
        for attempt_id, attempt in attempts.items()
    }


def _summed(of_version: Mapping[int, Sequence[str]], outcomes: Mapping[str, _Outcome]) -> dict[int, Earned]:
    found: dict[int, Earned] = {}
    for version, attempts in sorted(of_version.items()):
        own = [outcomes[one] for one in attempts if one in outcomes]
        rewards = [one.reward for one in own if one.reward is not None]
        if own:
            found[version] = Earned(
                version,
                attempts=len(own),
                failed=sum(one.failed for one in own),
                rewarded=len(rewards),
                mean=fmean(rewards) if rewards else None,
                interval=mean_interval(rewards),
                more=len(own) < len(attempts),
            )
    return found
