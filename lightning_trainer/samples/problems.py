"""What a person should hear about a build: why there is less to train on than they expect, in one sentence each."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples.credit.groups import GroupSummary
from lightning_trainer.samples.rewards.reward_table import RewardTable
from lightning_trainer.samples.transitions.ledger import CallOutcome
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call, Evaluation, LedgerRow

_WORTH_SAYING = (
    Reason.FIDELITY_TOO_LOW,
    Reason.RETOKENIZED,
    Reason.NO_POLICY_VERSION,
    Reason.NO_TOKEN_IDS,
    Reason.EMPTY_PROMPT,
    Reason.NO_LOGPROBS,
    Reason.LOGPROB_COUNT,
    Reason.LOGPROB_NOT_FINITE,
    Reason.NOT_IN_VOCABULARY,
    Reason.INCOMPLETE_STREAM,
    Reason.NON_TEXT,
    Reason.MEDIA_MISSING,
    Reason.PLACEHOLDER,
    Reason.OVER_LENGTH,
    Reason.CUT,
)
"""Something that went wrong, and not a choice of the user's."""
_MOST_PARAMETERS = 4


def refusals(groups: Iterable[GroupSummary]) -> list[str]:
    """Say why groups are not trained: for each verdict, the first group's sentence and how many others it is true of.

    Each group that ended in an error is named, since errors differ.
    """
    sentences: dict[Reason | str, list[str]] = {}
    for group in groups:
        if (sentence := group.refused_reason) is not None:
            same = sentence if group.verdict is Reason.QUARANTINED else group.verdict
            sentences.setdefault(same, []).append(sentence)
    return [
        first if not others else f"{first}. The same is true of {len(others)} more group{'s' * (len(others) > 1)}"
        for first, *others in sentences.values()
    ]


def nothing_trained(groups: Sequence[GroupSummary]) -> str:
    """Say why a step has no batch: why groups were refused, and why groups were left out."""
    left_out = Counter(
        group.verdict for group in groups if group.refused_reason is None and group.verdict is not Reason.SAMPLED
    )
    said = refusals(groups) + [
        f"groups left out ({verdict.value}): {count}. {verdict.explanation}" for verdict, count in left_out.items()
    ]
    return "; ".join(said) or "no token of it can be trained"


def unclaimed(calls: Sequence[Call], policy: PolicyConfig) -> list[str]:
    """Say that no call was made by an agent of the policy, and which agents made calls."""
    if not calls or any(policy.claims(call.agent) for call in calls):
        return []
    seen = sorted({call.agent for call in calls if call.agent is not None})
    return [
        f"policy {policy.name} claims the agents {', '.join(policy.agents)}, and none of {len(calls)} calls is theirs; "
        + (f"agents seen: {', '.join(seen)}" if seen else "no call carries an agent name")
    ]


def answered_by_others(calls: Iterable[Call], policy: PolicyConfig) -> list[str]:
    """Say which of the policy's agents it never answered, because the program names another policy as its model.

    An agent that asks another policy among its own calls (a frozen judge, say) does so on purpose.
    """
    answered: dict[str | None, Counter[str]] = {}
    # There are many calls of few agents, so each agent is looked at once.
    for (agent, by), count in Counter((call.agent, call.policy) for call in calls).items():
        if by is not None and policy.claims(agent):
            answered.setdefault(agent, Counter())[by] += count
    return [
        f"policy {policy.name} claims the agent {agent!r} and cannot train it: policy {' and '.join(sorted(by))} "
        f"answered its calls ({by.total()}), as it does where a program names it as the model; name {policy.name} "
        "there, or a model that is not a policy"
        for agent, by in sorted(answered.items(), key=str)
        if policy.name not in by
    ]


def unscored(attempt_ids: Collection[str], evaluations: Iterable[Evaluation], policy: PolicyConfig) -> list[str]:
    """Say that attempts lack a reward that their credit scheme needs, and which evaluations there were.

    Args:
        attempt_ids: attempts in which some transition was dropped because a reward is missing.
    """
    if not attempt_ids:
        return []
    hint = _other_names(evaluations, policy) or f"credit scheme {policy.credit.scheme!r} needs one" + (
        " of the attempt as a whole" if "calls" in policy.credit.unused else " wherever others have one"
    )
    return [f"attempts that lack a reward: {len(attempt_ids)} (such as {min(attempt_ids)}); {hint}"]


def unscored_examples(calls: int, evaluations: Iterable[Evaluation], policy: PolicyConfig) -> list[str]:
    """Say that calls lack a reward and cannot be examples, if all evaluations have other names than the reward.

    Args:
        calls: how many lack a reward; the ledger shows them in any case.
    """
    hint = _other_names(evaluations, policy) if calls else None
    return [] if hint is None else [f"calls that lack a reward: {calls}; {hint}: choose with --reward NAME"]


def _other_names(evaluations: Iterable[Evaluation], policy: PolicyConfig) -> str | None:
    """Return that no evaluation has the name of a reward; None if one has it, or if there are none at all."""
    names = {evaluation.name for evaluation in evaluations}
    if not names or policy.reward_weights.keys() & names:
        return None
    rewards = ", ".join(repr(name) for name in policy.reward_weights)
    return f"there are evaluations named {', '.join(sorted(names))}, and the policy's reward is {rewards}"


def unused(rewards: RewardTable, calls: Mapping[str, Call], policy: PolicyConfig) -> list[str]:
    """Say that rewards were given which the credit scheme leaves out, if others were given that it uses.

    Args:
        calls: those of the policy that can be trained, by id.
    """
    owners = {(call.attempt_id, call.agent) for call in calls.values()}
    attempt_ids = {attempt_id for attempt_id, _ in owners}
    given = {
        "calls": [name for name in rewards.of_calls if name in calls],
        "agents": [
            f"{agent} in {attempt_id}" for attempt_id, agent in rewards.of_agents if (attempt_id, agent) in owners
        ],
        "attempts": [name for name in rewards.of_attempts if name in attempt_ids],
    }
    left_out = policy.credit.unused
    if not any(names for kind, names in given.items() if kind not in left_out):
        return []  # nothing is trained, and another sentence says so
    return [
        f"credit scheme {policy.credit.scheme!r} does not use rewards of single {kind}: {len(given[kind])} were given "
        f"(such as {min(given[kind])}) and teach nothing; choose a scheme of docs/credit.md that counts them, or do "
        "not give them"
        for kind in left_out
        if given[kind]
    ]


def absent_agents(rewards: RewardTable, calls: Iterable[Call]) -> list[str]:
    """Say that rewards name agents that made no call in any attempt: most likely the name is misspelled.

    Args:
        calls: of all agents and attempts; an agent may be rewarded in an attempt in which it was silent.
    """
    seen = sorted({call.agent for call in calls if call.agent is not None})
    return [
        f"rewards of the agent {agent!r} teach nothing: it made no call in any attempt here; agents that did: "
        f"{', '.join(seen)}. Give lt.reward(agent=...) a name of these"
        for agent in sorted({agent for _, agent in rewards.of_agents}.difference(seen))
        if seen
    ]


def demonstrations_too_long(ledger: Iterable[LedgerRow], policy: PolicyConfig) -> list[str]:
    """Say how many answers of a stage's data are too long to be trained."""
    rows = sum(row.calls for row in ledger if row.reason == Reason.OVER_LENGTH)
    if not rows:
        return []
    return [
        f"{rows} answers of the stage's data are longer, with their prompts, than max_sample_tokens = "
        f"{policy.max_sample_tokens}, and are left out; raise it, or shorten them"
    ]


def unused_calls(ledger: Iterable[LedgerRow], policy: PolicyConfig) -> list[str]:
    """Say how many calls of the policy's agents could not be used because of what was, or was not, recorded of them."""
    tokens: dict[str, int] = {}
    calls: dict[str, int] = {}
    for row in ledger:
        if policy.claims(row.agent):
            tokens[row.reason] = tokens.get(row.reason, 0) + row.tokens
            calls[row.reason] = calls.get(row.reason, 0) + row.calls
    return [
        f"calls {'cut short' if reason is Reason.CUT else 'not trained'} ({reason.value}): {calls[reason]}, with "
        f"{tokens[reason]} sampled tokens. "
        + reason.explanation
        + (f" It is {policy.max_sample_tokens}." if reason in (Reason.OVER_LENGTH, Reason.CUT) else "")
        for reason in _WORTH_SAYING
        if reason in calls
    ]


def stale(groups: Iterable[GroupSummary], ledger: Iterable[LedgerRow], policy: PolicyConfig) -> list[str]:
    """Say how many calls were too old to train, if that may be why a group has too few attempts."""
    calls = sum(row.calls for row in ledger if row.reason == Reason.STALE and policy.claims(row.agent))
    if not calls or all(group.verdict is not Reason.GROUP_TOO_SMALL for group in groups):
        return []
    return [
        f"calls not trained (stale): {calls}. More than max_staleness = {policy.max_staleness} versions have gone live "
        "since they were answered: raise it, or let groups fill up sooner (a smaller group_size or groups_per_step)"
    ]


def unknown_sampling(calls: Iterable[Call], call_outcomes: Mapping[str, CallOutcome]) -> list[str]:
    """Say which parameters kept calls from being trained."""
    calls_of = Counter(
        call.sampling_unknown
        for call in calls
        if call.sampling_unknown and call_outcomes.get(call.call_id, (None, None))[1] is Reason.SAMPLING_UNKNOWN
    )
    return [
        f"calls not trained ({Reason.SAMPLING_UNKNOWN.value}): {count}. It is not known what their tokens were drawn "
        f"from: {why}; docs/sampling.md says what is trained how"
        for why, count in calls_of.most_common(_MOST_PARAMETERS)
    ]
