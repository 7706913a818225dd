"""Attempts in one line each: agents, reward, and the versions that answered. Read from spans, and kept in memory.

A summary is made again if more of its attempt has arrived since, a stage with other rewards has begun, or a judge's
correction has changed; the cache holds the newest few thousand.
"""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.explain.words import version_name
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.reliability.report import corrections
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.samples.transitions.deduplication import deduplicate
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import scores
from lightning_trainer.store.tables.spans import select_of_attempts
from lightning_trainer.store.tables.steps import last_step
from lightning_trainer.types import Attempt, Call, RolloutMode, Span

_KEPT = 5_000
_RESTS = 20.0
"""Corrections are kept for this many times as long as reading them took: with many verdicts, a second or two."""
_NO_POLICY = {"reward": 1.0}
_NONE: frozenset[str] = frozenset()
_Mark = tuple[object, ...]
"""A value that stays equal as long as a summary need not be made again."""


@dataclass(frozen=True, slots=True)
class Summary:
    """An attempt in one line."""

    attempt: Attempt
    reward: float | None
    """What the attempt earned by the rewards of the policy that claims one of its agents: those of the stage whose step
    took it or would take it, corrected as for training; for an evaluation, those that versions are compared by."""
    agents: tuple[str, ...]
    versions: tuple[str, ...]
    """The versions that answered its calls, as ``POLICY@vN``."""
    calls: int
    prompt_tokens: int | None
    """Counted by their ids, or by the server if a call has no ids; None: nothing counted them."""
    sampled_tokens: int | None
    step: int | None
    """The step that consumed the attempt; None while none has."""

    @property
    def tokens(self) -> int | None:
        """Return all tokens that are counted; None if none are."""
        counts = [count for count in (self.prompt_tokens, self.sampled_tokens) if count is not None]
        return sum(counts) if counts else None

    @property
    def seconds(self) -> float | None:
        """Return how long the attempt took; None while it is running."""
        ended = self.attempt.ended_ns
        return None if ended is None else (ended - self.attempt.started_ns) / 1e9


class SummaryCache:
    """Summaries by attempt. It is used from the store's reader threads; after a race, a summary is made twice."""

    def __init__(self, judges: Sequence[AnyJudge] = (), *, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            judges: the configuration's.
            clock: returns seconds.
        """
        self._judges = judges
        self._clock = clock
        self._kept: OrderedDict[str, tuple[_Mark, Summary]] = OrderedDict()
        self._corrections: tuple[_Mark, Mapping[str, Correction]] = (), {}
        """The corrections, with a mark of the scores that they were read from."""
        self._read_again_at = -math.inf

    def corrections(self, connection: Connection, policies: Sequence[PolicyConfig]) -> Mapping[str, Correction]:
        """Return the corrections of the judges' rewards, by name, as they were last read."""
        names = {name for policy in policies for stage in policy.of_stages for name in stage.corrected_rewards}
        judges = [judge for judge in self._judges if judge.name in names]
        given = dict.fromkeys(name for judge in judges for name in (judge.name, *judge.checked_by))
        mark = tuple(scores.bounds(connection, name) for name in given)
        began = self._clock()
        if mark != self._corrections[0] and began >= self._read_again_at:
            self._corrections = mark, corrections(connection, names, judges)
            self._read_again_at = self._clock() + _RESTS * (self._clock() - began)
        return self._corrections[1]

    def of(
        self, connection: Connection, attempts: Sequence[Attempt], policies: Sequence[PolicyConfig]
    ) -> list[Summary]:
        """Return the summaries of some attempts, in their order."""
        next_steps = {one.name: last_step(connection, one.name) + 1 for one in policies if one.stage}
        stages = tuple(one.at_step(next_steps[one.name]).reward for one in policies if one.stage)
        corrected = self.corrections(connection, policies)
        of_all = stages, tuple(corrected.items())
        marks: dict[str, _Mark] = {one.attempt_id: (*_mark(connection, one), *of_all) for one in attempts}
        found = {one.attempt_id: known for one in attempts if (known := self._known(one, marks[one.attempt_id]))}
        missing = [one for one in attempts if one.attempt_id not in found]
        for made in _summaries(connection, missing, policies, next_steps, corrected):
            attempt_id = made.attempt.attempt_id
            found[attempt_id] = made
            self._kept[attempt_id] = marks[attempt_id], made
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return [found[one.attempt_id] for one in attempts]

    def _known(self, attempt: Attempt, mark: _Mark) -> Summary | None:
        entry = self._kept.get(attempt.attempt_id)
        return entry[1] if entry is not None and entry[0] == mark and entry[1].attempt == attempt else None


def _mark(connection: Connection, attempt: Attempt) -> tuple[int, int]:
    """Return numbers that change when a span of the attempt arrives, or a step takes it."""
    (newest,) = connection.execute(
        """SELECT coalesce(max(seq), 0) FROM (SELECT max(seq) AS seq FROM spans WHERE attempt_id = ?
           UNION ALL SELECT max(seq) FROM spans WHERE rollout_id = ?) AS newest""",
        (attempt.attempt_id, attempt.rollout_id),
    ).fetchone()
    (steps,) = connection.execute(
        "SELECT count(*) FROM assignments WHERE attempt_id = ?", (attempt.attempt_id,)
    ).fetchone()
    return newest, steps


def _summaries(
    connection: Connection,
    attempts: Sequence[Attempt],
    policies: Sequence[PolicyConfig],
    next_steps: Mapping[str, int],
    corrected: Mapping[str, Correction],
) -> list[Summary]:
    if not attempts:
        return []
    spans = select_of_attempts(connection, [one.attempt_id for one in attempts])
    reading = read_spans(spans)
    calls: dict[str | None, list[Call]] = {}
    for call in reading.calls:
        calls.setdefault(call.attempt_id, []).append(call)
    claims: dict[str | None, Callable[[str | None], bool]] = {policy.name: policy.claims for policy in policies}
    weighed: dict[tuple[str | None, tuple[tuple[str, float], ...], Collection[str]], dict[str, Attempt]] = {}
    for one in attempts:
        policy = _policy_of(calls.get(one.attempt_id, ()), policies)
        weights, names = (_NO_POLICY, _NONE) if policy is None else _rewards(connection, one, policy, next_steps)
        key = None if policy is None else policy.name, tuple(weights.items()), names
        weighed.setdefault(key, {})[one.attempt_id] = one
    deliveries = deduplicate(reading.calls)
    rewards: dict[str, float] = {}
    for (policy_name, weights, names), theirs in weighed.items():
        table = read_rewards(
            reading.evaluations,
            deliveries.kept,
            theirs,
            dict(weights),
            deliveries.repeated,
            corrections={name: one for name, one in corrected.items() if name in names},
            claims=claims.get(policy_name),
        )
        rewards |= table.earned
    recorded = {(span.trace_id, span.span_id): span for span in spans}
    counts = {attempt_id: _token_counts(own, recorded) for attempt_id, own in calls.items()}
    return [
        Summary(
            attempt=one,
            reward=rewards.get(one.attempt_id),
            agents=tuple(dict.fromkeys(call.agent for call in own if call.agent is not None)),
            versions=tuple(
                dict.fromkeys(version_name(call.policy, call.policy_version) for call in own if call.policy is not None)
            ),
            calls=len(own),
            prompt_tokens=prompt_tokens,
            sampled_tokens=sampled_tokens,
            step=_step(connection, one.attempt_id),
        )
        for one in attempts
        for own in (calls.get(one.attempt_id, []),)
        for prompt_tokens, sampled_tokens in (counts.get(one.attempt_id, (0, 0)),)
    ]


def _token_counts(calls: Sequence[Call], spans: Mapping[tuple[str, str], Span]) -> tuple[int | None, int | None]:
    counts: dict[object, tuple[int | None, int | None]] = {}
    for call in calls:
        place = call.trace_id, call.span_id
        if call.prompt_ids or call.response_ids:
            counts[call.call_id] = len(call.prompt_ids), len(call.response_ids)
        elif place in spans:  # a span counts its choices together
            usage = dialect_of(spans[place]).usage(spans[place])
            counts[place] = usage.input_tokens, usage.output_tokens
    prompts = [count for count, _ in counts.values() if count is not None]
    answers = [count for _, count in counts.values() if count is not None]
    return sum(prompts) if prompts else None, sum(answers) if answers else None


def _policy_of(calls: Sequence[Call], policies: Sequence[PolicyConfig]) -> PolicyConfig | None:
    """Return the policy whose rewards count: one that claims an agent of the attempt, else the first."""
    claiming = (policy for call in calls for policy in policies if policy.claims(call.agent))
    return next(claiming, policies[0] if policies else None)


def _rewards(
    connection: Connection, attempt: Attempt, policy: PolicyConfig, next_steps: Mapping[str, int]
) -> tuple[Mapping[str, float], frozenset[str]]:
    """Return the weights of the attempt's rewards, and the names of the corrected ones; see ``Summary.reward``."""
    if attempt.mode is RolloutMode.EVALUATE:
        return policy.reward_weights, _NONE
    if policy.stage and attempt.mode is not RolloutMode.RECORD:
        (step,) = connection.execute(
            "SELECT max(step) FROM assignments WHERE policy = ? AND attempt_id = ?", (policy.name, attempt.attempt_id)
        ).fetchone()
        policy = policy.at_step(step or next_steps[policy.name])
    return policy.reward_weights, policy.corrected_rewards


def _step(connection: Connection, attempt_id: str) -> int | None:
    (step,) = connection.execute("SELECT max(step) FROM assignments WHERE attempt_id = ?", (attempt_id,)).fetchone()
    return step
