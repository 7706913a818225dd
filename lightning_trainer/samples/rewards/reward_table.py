"""Evaluations to rewards: of attempts, of one agent in an attempt, and of single calls.

What an evaluation scores, first match wins:

1. a call, when it names the call (``span id/choice``), the span that recorded the call, or the client's chat span
   above that one: a span with exactly one recorded response below it (one with several is an agent or a workflow);
2. the call that gave the response that it names (``gen_ai.response.id``);
3. the agent that it names, in the attempt of 4 or 5;
4. the attempt that it names;
5. the latest attempt of the rollout that it names: an outcome of the rollout is that of its last try.

If several have the same name and target, the last number by time counts; at the same nanosecond, the larger: so neither
re-delivery nor order of arrival has an effect. None, NaN and infinity are missing, never zero (promise 6): they do not
undo a number that was given before.

With several reward names, their weighted sum counts (``weighting.py``).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lightning_instrumentation.reward import LARGEST_REWARD

from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.rewards.targets import Scope, Target, Targets
from lightning_trainer.samples.rewards.weighting import weigh
from lightning_trainer.samples.transitions.deduplication import Deliveries, deduplicate
from lightning_trainer.types import Attempt, Call, Evaluation


@dataclass(frozen=True, slots=True)
class RewardTable:
    """The rewards, by what they are for; whatever has no entry was not scored."""

    of_attempts: Mapping[str, float]
    """By attempt id: terminal rewards."""
    of_calls: Mapping[str, float]
    """By call id: rewards of single steps."""
    problems: tuple[str, ...]
    """One sentence each on evaluations that could not be used."""
    of_agents: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """By attempt id and agent: rewards of one agent in an attempt."""
    incomplete: Mapping[str, str] = field(default_factory=dict)
    """By group id: why a group is left out in which one of several rewards is missing altogether."""
    earned: Mapping[str, float] = field(default_factory=dict)
    """By attempt id: its own reward, or else the sum of those of all its claimed agents or of all their calls; absent
    if one of those is missing."""


def read_rewards(
    evaluations: Iterable[Evaluation],
    calls: Sequence[Call],
    attempts: Mapping[str, Attempt],
    weights: str | Mapping[str, float],
    repeated: Iterable[tuple[Call, Call]] = (),
    corrections: Mapping[str, Correction] | None = None,
    claims: Callable[[str | None], bool] | None = None,
) -> RewardTable:
    """Return which rewards were given to which attempts, agents, and calls.

    Args:
        evaluations: all of them; only those with one of the names are rewards.
        calls: one record for each response, of all agents.
        attempts: by id; evaluations of other attempts are ignored.
        weights: of the policy's rewards, by name; a single name has the weight 1.
        repeated: pairs of a left-out record and the call that is kept for it, so that naming either means the call.
        corrections: by name, of judges whose errors are taken off; one that is refused gives no rewards. What anybody
            else gave under a judge's name counts as it is.
        claims: whether an agent's reward is part of what its attempt earned; without it, every agent's is.
    """
    corrections = corrections or {}
    refused = {name: said for name, one in corrections.items() if (said := one.refused) is not None}
    weights = {weights: 1.0} if isinstance(weights, str) else weights
    rewards = {evaluation for evaluation in evaluations if evaluation.name in weights}
    # Most tasks score only attempts, and then no call needs to be found.
    calls_too = any(reward.span_id is not None or reward.response_id is not None for reward in rewards)
    targets = Targets(calls, attempts, repeated) if calls_too else Targets((), attempts, ())
    read = _Reading()
    for evaluation in rewards:
        judge = evaluation.judge if evaluation.judge == evaluation.name else None
        if judge not in refused and (target := targets.find(evaluation)) is not None:
            read.add(evaluation, target, corrections.get(judge or ""))
    sums = weigh(read.numbers(), weights, calls, attempts)
    values = sums.values.items()
    of_attempts = {target.name: value for target, value in values if target.scope is Scope.ATTEMPT}
    of_calls = {target.name: value for target, value in values if target.scope is Scope.CALL}
    of_agents = {
        (target.name, target.agent): value
        for target, value in values
        if target.scope is Scope.AGENT and target.agent is not None
    }
    return RewardTable(
        of_attempts=of_attempts,
        of_calls=of_calls,
        problems=(*sorted(refused.values()), *read.problems(), *sums.problems),
        of_agents=of_agents,
        incomplete=sums.incomplete,
        earned={
            **_added_up(of_agents, of_calls, (call for call in calls if claims is None or claims(call.agent))),
            **of_attempts,
        },
    )


def _added_up(
    of_agents: Mapping[tuple[str, str], float], of_calls: Mapping[str, float], calls: Iterable[Call]
) -> dict[str, float]:
    """Return, by attempt id, the sum over all its agents, or else over all its calls; absent if one lacks a reward."""
    if not of_agents and not of_calls:
        return {}
    calls_of: dict[str, list[Call]] = {}
    for call in calls:
        if call.attempt_id is not None:
            calls_of.setdefault(call.attempt_id, []).append(call)
    found: dict[str, float] = {}
    for attempt_id, own in calls_of.items():
        agents = dict.fromkeys(call.agent or "" for call in own)
        for parts in (
            [of_agents.get((attempt_id, agent)) for agent in agents],
            [of_calls.get(call.call_id) for call in own],
        ):
            known = [part for part in parts if part is not None]
            if len(known) == len(parts):
                found[attempt_id] = sum(known)
                break
    return found


class _Reading:
    """What the evaluations gave, sorted into numbers and what cannot be used."""

    def __init__(self) -> None:
        self._last: dict[tuple[Target, str], tuple[int, float]] = {}
        """By target and name: the last number by time, corrected, with its time."""
        self._not_numbers: dict[tuple[Target, str], set[str]] = {}
        """By target and name: a sentence for each evaluation without a number."""
        self._ambiguous: set[tuple[str, str]] = set()
        """Span and name."""
        self._shared: set[tuple[str, str]] = set()
        """Response and name."""

    def add(self, evaluation: Evaluation, target: Target, correction: Correction | None) -> None:
        """Read one evaluation; neither order nor repetition has an effect."""
        name, value = evaluation.name, evaluation.value
        if target.scope is Scope.AMBIGUOUS:
            self._ambiguous.add((target.name, name))
        elif target.scope is Scope.SHARED:
            self._shared.add((target.name, name))
        elif value is None or not abs(value) <= LARGEST_REWARD:
            said = f"{target}: evaluation {name!r} gave no number ({value})"
            self._not_numbers.setdefault((target, name), set()).add(said)
        else:
            observed = (evaluation.time_ns, float(value) if correction is None else correction(value))
            self._last[target, name] = max(self._last.get((target, name), observed), observed)

    def numbers(self) -> dict[Target, dict[str, float]]:
        """Return the numbers by target and name."""
        given: dict[Target, dict[str, float]] = {}
        for (target, name), (_, value) in self._last.items():
            given.setdefault(target, {})[name] = value
        return given

    def problems(self) -> list[str]:
        """Return one sentence for each thing that could not be used."""
        # A sender that tried again and then gave a number has corrected its mistake.
        unmended = {text for key, texts in self._not_numbers.items() if key not in self._last for text in texts}
        return [
            *(f"{text} and counts as missing" for text in sorted(unmended)),
            *(
                f"span {span_id}: {name} does not say which of the response's choices it scores, so it scores none; "
                f"name one as {span_id}/0"
                for span_id, name in sorted(self._ambiguous)
            ),
            *(
                f"{named}: {name} scores it, and several calls have this id, so it scores none; score the attempt, or "
                "give the reward inside of the call's own span"
                for named, name in sorted(self._shared)
            ),
        ]


def read_outcomes(
    evaluations: Iterable[Evaluation],
    calls: Sequence[Call],
    attempts: Mapping[str, Attempt],
    policy: PolicyConfig,
) -> dict[str, float]:
    """Return what attempts earned by a policy's rewards, by attempt id; absent if a part is missing.

    As in training, agents that the policy does not claim need no reward, and a reward that they were given does not
    count.

    Args:
        evaluations: all of them; only those that are a reward of the policy count.
        calls: all of the attempts' calls, of all agents; the same call may occur more than once.
        attempts: by id.
        policy: whose rewards they are.
    """
    evaluations, deliveries = list(evaluations), deduplicate(calls)
    found = dict.fromkeys(attempts, 0.0)
    for name, weight in sorted(policy.reward_weights.items()):
        table = read_rewards(evaluations, deliveries.kept, attempts, name, deliveries.repeated, claims=policy.claims)
        found = {one: total + weight * table.earned[one] for one, total in found.items() if one in table.earned}
    return found


def given_rewards(
    evaluations: Sequence[Evaluation], calls: Deliveries, attempts: Mapping[str, Attempt]
) -> dict[str, dict[str, float]]:
    """Return the rewards of whole attempts, by attempt id and name; without those of single agents or calls."""
    given: dict[str, dict[str, float]] = {}
    for name in {evaluation.name for evaluation in evaluations}:
        table = read_rewards(evaluations, calls.kept, attempts, name, calls.repeated)
        for attempt_id, value in table.of_attempts.items():
            given.setdefault(attempt_id, {})[name] = value
    return given
