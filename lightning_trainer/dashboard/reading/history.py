"""The newest steps: their rows for curves, held-out scores by version, and what became of their tokens.

Other runs' curves are read from their state folders: finished ones, or those of a daemon that runs elsewhere.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.metrics.row import StepMetrics, select_rows
from lightning_trainer.report.difference import (
    MeanDifference,
    PairedDifference,
    mean_difference,
    paired_difference,
)
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import versions as version_table
from lightning_trainer.types import PolicyVersion
from lightning_trainer.versions.held_out import HeldOutScore, held_out_scores, select_newest_scores, select_verdicts

SHOWN_STEPS = 100
"""Points of a chart; more than its pixels can show would only take time."""


@dataclass(frozen=True, slots=True)
class PolicyPast:
    """A policy's recorded history."""

    rows: Sequence[StepMetrics]
    """Rows of the newest steps, first to last."""
    steps: int
    """The newest step that has ended; 0 if none has."""
    live: PolicyVersion | None
    held_out: Sequence[tuple[int, HeldOutScore]]
    """Version and score of the newest versions that have one, in ascending order."""


@dataclass(frozen=True, slots=True)
class AgentTokens:
    """What became of the tokens that an agent's calls sampled for a policy."""

    agent: str
    policy: str
    tokens: dict[str, int]
    """Sampled tokens by outcome."""
    calls: int


@dataclass(frozen=True, slots=True)
class TaskScores:
    """One task under two versions: mean rewards, and the numbers of attempts."""

    task: str
    one: float
    other: float
    attempts: tuple[int, int]


def read_past(
    connection: Connection, policy: str, newest: int = SHOWN_STEPS, *, unread: PolicyConfig | None = None
) -> PolicyPast:
    """Return a policy's newest steps, its live version, and the held-out scores of its newest versions.

    Args:
        unread: the policy's configuration, if evaluations that no daemon has read (``refresh_verdicts``) count too.
    """
    scores = (
        select_newest_scores(connection, policy, newest)
        if unread is None
        else held_out_scores(select_verdicts(connection, unread))
    )
    ended = select_rows(connection, policy, newest=newest)
    return PolicyPast(
        rows=ended,
        steps=ended[-1].step if ended else 0,
        live=version_table.select_live(connection, policy),
        held_out=[(version, scores[version]) for version in sorted(scores)[-newest:]],
    )


def spread_rows(
    connection: Connection, policy: str, first: int | None = None, last: int | None = None
) -> tuple[list[StepMetrics], int]:
    """Return the rows of the steps from ``first`` to ``last``, and how many steps there are.

    If there are more than ``SHOWN_STEPS``, the rows are an evenly spread selection that includes the newest.
    """
    low, high = first or 0, 2**62 if last is None else last
    (steps,) = connection.execute(
        "SELECT count(*) FROM steps WHERE policy = ? AND step BETWEEN ? AND ? AND state != 'assigned'",
        (policy, low, high),
    ).fetchone()
    if steps <= SHOWN_STEPS:
        return [
            row for row in select_rows(connection, policy, after=low - 1, oldest=steps + 1) if row.step <= high
        ], steps
    (oldest, newest) = connection.execute(
        "SELECT min(step), max(step) FROM steps WHERE policy = ? AND step BETWEEN ? AND ? AND state != 'assigned'",
        (policy, low, high),
    ).fetchone()
    every = (newest - oldest) / (SHOWN_STEPS - 1)
    wanted = sorted({round(oldest + index * every) for index in range(SHOWN_STEPS)})
    return [row for step in wanted for row in select_rows(connection, policy, only=step)], steps


def known_policies(connection: Connection) -> list[str]:
    """Return the names of the policies that the store knows."""
    return [name for (name,) in connection.execute("SELECT policy FROM policies ORDER BY policy")]


def tokens_by_agent(connection: Connection, policy: str, first: int, last: int) -> list[AgentTokens]:
    """Return what became of the sampled tokens of the steps from ``first`` to ``last``, by agent."""
    found: dict[str, AgentTokens] = {}
    for row in step_table.select_ledger(connection, policy, None, since=first, before=last + 1):
        known = found.get(row.agent) or AgentTokens(row.agent, policy, {}, 0)
        tokens = {**known.tokens, row.outcome.value: known.tokens.get(row.outcome.value, 0) + row.tokens}
        found[row.agent] = AgentTokens(row.agent, policy, tokens, known.calls + row.calls)
    return [found[name] for name in sorted(found)]


def compare_versions(
    connection: Connection, policy: PolicyConfig, one: int, other: int, *, unread: bool
) -> tuple[list[TaskScores], PairedDifference | MeanDifference | None]:
    """Return the tasks that evaluations of both versions tried, and the difference over them: by the exact McNemar test
    if both versions tried each task once and scored 0 or 1, else of the tasks' means; None if the tasks say nothing
    about its spread.

    Args:
        unread: whether evaluations that no daemon has read (``refresh_verdicts``) count too.
    """
    if unread:
        found = {name: v for name, v in select_verdicts(connection, policy).items() if v.version in (one, other)}
        tried = attempt_table.select(connection, attempt_ids=list(found))
        verdicts = ((attempt.attempt_id, attempt.task_id or attempt.rollout_id) for attempt in tried)
        rows = [(task, found[name].version, found[name].reward) for name, task in verdicts]
    else:
        rows = connection.execute(
            """SELECT coalesce(task_id, rollout_id), version, reward FROM verdicts JOIN attempts USING (attempt_id)
               WHERE policy = ? AND version IN (?, ?)""",
            (policy.name, one, other),
        ).fetchall()
    rewards: dict[str, dict[int, list[float]]] = {}
    for task, version, reward in rows:
        rewards.setdefault(task, {}).setdefault(version, []).append(reward)
    both = {task: of for task, of in rewards.items() if one in of and other in of}
    scores = [
        TaskScores(task, fmean(of[one]), fmean(of[other]), (len(of[one]), len(of[other])))
        for task, of in sorted(both.items())
    ]
    before, after = [score.one for score in scores], [score.other for score in scores]
    only_passes = all(score.attempts == (1, 1) for score in scores) and {*before, *after} <= {0.0, 1.0}
    if not only_passes:
        return scores, mean_difference(before, after)
    return scores, paired_difference([*map(bool, before)], [*map(bool, after)]) if len(scores) > 1 else None


Rows = dict[str, tuple[list[StepMetrics], int]]
"""By the name of a curve: the steps that are shown, and how many there are."""
_PLAIN = ("state", ".lightning")
"""Default names of state folders; the folder above says which run it is."""


def run_names(folders: Sequence[Path]) -> list[str]:
    """Return a name for each run: its state folder's, or the name of the folder above if the former is a default.

    Runs that would get the same name are named by their whole paths.
    """
    names = [folder.parent.name if folder.name in _PLAIN else folder.name for folder in folders]
    return [name if names.count(name) == 1 else str(folder) for name, folder in zip(names, folders, strict=True)]


async def read_other_runs(
    folders: Sequence[Path], policy: str | None, first: int | None, last: int | None
) -> tuple[Rows, list[str]]:
    """Return the runs' steps by ``POLICY in RUN``, and a sentence for each run that cannot be read.

    Args:
        policy: only policies of this name.
    """
    return await asyncio.to_thread(_read, folders, policy, first, last)


def _read(folders: Sequence[Path], policy: str | None, first: int | None, last: int | None) -> tuple[Rows, list[str]]:
    found: Rows = {}
    problems = []
    for folder, run in zip(folders, run_names(folders), strict=True):
        try:
            with read_only(folder / "lightning.sqlite") as connection:
                for name in known_policies(connection):
                    if policy in (None, name):
                        found[f"{name} in {run}"] = spread_rows(connection, name, first, last)
        except StoreError as error:
            problems.append(str(error))
    return found, problems
