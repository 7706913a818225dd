"""The reward of an attempt by itself, as versions are compared by it: with every part of it, or missing.

Formula: ``sum over the names n of weight_n * value_n``. In a group a name is expected once anybody was given it
(``weighting.py``). An attempt by itself is compared with nothing that could say so, and some parts come later than
others (feedback, a judge's verdict), so every name is expected of it: a part alone is not a reward.

Where agents or calls were scored and not the attempt (``agent_credit``), its value is the sum over all of them.
"""

from collections.abc import Iterable, Mapping, Sequence

from lightning_trainer.samples.rewards.reward_table import RewardTable, read_rewards
from lightning_trainer.samples.transitions.deduplication import deduplicate
from lightning_trainer.types import Attempt, Call, Evaluation


def read_outcomes(
    evaluations: Iterable[Evaluation],
    calls: Sequence[Call],
    attempts: Mapping[str, Attempt],
    weights: Mapping[str, float],
) -> dict[str, float]:
    """Return the rewards of attempts by id; absent where a part is missing.

    Args:
        evaluations: all of them; only those with one of the names are rewards.
        calls: all of the attempts' calls, of all agents; the same call may be there more than once.
        attempts: by id.
        weights: of the rewards, by name.
    """
    evaluations, deliveries = list(evaluations), deduplicate(calls)
    calls_of: dict[str | None, list[Call]] = {}
    for call in deliveries.kept:
        calls_of.setdefault(call.attempt_id, []).append(call)
    found = dict.fromkeys(attempts, 0.0)
    for name, weight in sorted(weights.items()):
        table = read_rewards(evaluations, deliveries.kept, attempts, name, deliveries.repeated)
        values = {attempt_id: _value(attempt_id, table, calls_of.get(attempt_id, ())) for attempt_id in found}
        found = {
            attempt_id: found[attempt_id] + weight * value for attempt_id, value in values.items() if value is not None
        }
    return found


def _value(attempt_id: str, given: RewardTable, calls: Sequence[Call]) -> float | None:
    """Return what an attempt was given, or else all its agents, or all its calls; None where one of them lacks it."""
    if attempt_id in given.of_attempts:
        return given.of_attempts[attempt_id]
    agents = dict.fromkeys(call.agent for call in calls)
    of_agents = [given.of_agents.get((attempt_id, agent or "")) for agent in agents]
    of_calls = [given.of_calls.get(call.call_id) for call in calls]
    for parts in (of_agents, of_calls):
        known = [part for part in parts if part is not None]
        if known and len(known) == len(parts):
            return sum(known)
    return None
