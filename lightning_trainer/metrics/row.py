"""One row of metrics: everything measured in one step, as plain numbers by name.

A row is computed from what the store holds about its step, so it can be rebuilt after a crash. What was not measured is
absent, never zero.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from lightning_trainer.samples.credit.groups import GroupSummary
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepRecord
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import versions as version_table
from lightning_trainer.types import Call, LedgerRow, Outcome, PolicyVersion


@dataclass(frozen=True, slots=True)
class StepMetrics:
    """A step's values by name; the part before the slash groups them (docs/operations.md lists all)."""

    policy: str
    step: int
    values: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Return the row as one flat object, with policy and step next to the values."""
        return {"policy": self.policy, "step": self.step, **self.values}


def step_metrics(
    policy: str, record: StepRecord, ledger: Iterable[LedgerRow], version: PolicyVersion | None
) -> StepMetrics:
    """Return a step's row.

    Args:
        ledger: of the step.
        version: the one that the step produced; None if it produced none.
    """
    values = {**record.metrics, **_ledger_metrics(ledger)}
    if record.report is not None:
        report = record.report
        values |= report.metrics
        values |= {
            "tokens/trained": report.tokens_trained,
            "tokens/computed": report.tokens_computed,
            "tokens/sequential": report.tokens_sequential,
        }
        values |= {f"seconds/{stage}": seconds for stage, seconds in report.seconds.items()}
    if version is not None:
        measured = {
            "seconds/publish": version.publish_s,
            "probe/max_abs": version.probe_max_abs,
            "probe/mean_abs": version.probe_mean_abs,
        }
        values |= {name: value for name, value in measured.items() if value is not None}
    return StepMetrics(policy, record.step, {name: float(values[name]) for name in sorted(values)})


def _ledger_metrics(ledger: Iterable[LedgerRow]) -> dict[str, float]:
    """Return sampled tokens by outcome, and those that are not trained also by reason."""
    sums = {f"ledger/{outcome}": 0.0 for outcome in Outcome}
    for row in ledger:
        names = [f"ledger/{row.outcome}"]
        if row.outcome is not Outcome.TRAINED:
            names.append(f"ledger/{row.outcome}/{row.reason}")
        for name in names:
            sums[name] = sums.get(name, 0.0) + row.tokens
    return sums


# Statistics of a step's groups; kept with the step even when nothing was trained.


DEVIATION = "reward/deviation"
"""Mean over the step's groups of the standard deviation of their attempts' rewards."""


def group_metrics(groups: Sequence[GroupSummary]) -> dict[str, float]:
    """Return counts of groups and attempts, the mean reward, and its mean deviation within a group."""
    rewards = [reward for group in groups for reward in group.rewards if reward is not None]
    deviations = [deviation for group in groups if (deviation := group.deviation) is not None]
    metrics = {
        "groups/total": float(len(groups)),
        "groups/kept": float(sum(group.verdict is Reason.SAMPLED for group in groups)),
        "groups/zero_variance": float(sum(group.flat for group in groups)),
        "groups/low_variance": float(sum(group.verdict is Reason.LOW_VARIANCE_GROUP for group in groups)),
        "groups/refused": float(sum(group.refused_reason is not None for group in groups)),
        "groups/solved": float(sum(all(reward == 1.0 for reward in group.rewards) for group in groups)),
        "attempts/total": float(sum(group.size for group in groups)),
        "attempts/scored": float(len(rewards)),
    }
    if rewards:
        metrics["reward/mean"] = sum(rewards) / len(rewards)
    if deviations:
        metrics[DEVIATION] = sum(deviations) / len(deviations)
    return metrics


def call_metrics(calls: Sequence[Call]) -> dict[str, float]:
    """Return verl's ``response_length``, ``prompt_length`` (tokens a call) and ``num_turns`` (calls an attempt).

    Args:
        calls: of the policy's agents in the step's attempts; those without sampled tokens count for nothing.
    """
    known = [call for call in calls if call.response_ids]
    if not known:
        return {}
    lengths = [len(call.response_ids) for call in known]
    turns = Counter(call.attempt_id for call in known).values()
    return {
        "response_length/mean": fmean(lengths),
        "response_length/max": float(max(lengths)),
        "response_length/clip_ratio": fmean(call.truncated for call in known),
        "prompt_length/mean": fmean(len(call.prompt_ids) for call in known),
        "prompt_length/max": float(max(len(call.prompt_ids) for call in known)),
        "num_turns/mean": fmean(turns),
        "num_turns/max": float(max(turns)),
    }


# How the judges of a step were corrected.


def judge_metrics(corrections: Mapping[str, Correction]) -> dict[str, float]:
    """Return error rates and weight of each corrected judge; one that is refused has weight 0 and no rates."""
    metrics: dict[str, float] = {}
    for name, one in corrections.items():
        metrics[f"judge/{name}/weight"] = 0.0 if one.refused is not None else one.shrunk
        if one.refused is None:
            metrics[f"judge/{name}/false_positives"] = one.rho0
            metrics[f"judge/{name}/false_negatives"] = one.rho1
    return metrics


# Rows of steps, computed from the store.


def select_rows(
    connection: Connection,
    policy: str,
    *,
    only: int | None = None,
    before: int | None = None,
    after: int | None = None,
    oldest: int | None = None,
    newest: int | None = None,
) -> list[StepMetrics]:
    """Return the rows of steps that have ended, first to last.

    Args:
        only: this step alone.
        before: only steps before this one.
        after: only steps after this one.
        oldest: at most this many, from the first on.
        newest: at most this many, the last ones.
    """
    records = step_table.select_steps(
        connection, policy, only=only, before=before, after=after, oldest=oldest, newest=newest, ended=True
    )
    return [
        step_metrics(
            policy,
            record,
            step_table.select_ledger(connection, policy, record.step),
            version_table.select_one(connection, policy, record.step),
        )
        for record in records
    ]
