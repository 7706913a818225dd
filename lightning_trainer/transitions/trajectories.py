"""Eligible calls to trajectories: one for each agent of each attempt, its transitions oldest first."""

from collections.abc import Iterable, Mapping
from operator import attrgetter

from lightning_trainer.transitions.lineage import parents_of
from lightning_trainer.transitions.token_tree import token_tree
from lightning_trainer.types import Attempt, Call, Trajectory, Transition


def trajectories_of(
    calls: Iterable[Call],
    attempts: Mapping[str, Attempt],
    attempt_rewards: Mapping[str, float],
    call_rewards: Mapping[str, float],
    agent_rewards: Mapping[tuple[str, str], float] | None = None,
) -> tuple[Trajectory, ...]:
    """Return the trajectories by attempt id, then agent.

    Args:
        calls: none of which there is a reason against (``eligibility.reason_against``).
        attempts: by id; has every attempt of the calls.
        attempt_rewards: by attempt id, of those that were scored.
        call_rewards: by call id, of those that were scored.
        agent_rewards: by attempt id and agent, of the agents that were scored apart from their attempt.

    Raises:
        ValueError: there is a reason against one of the calls.
    """
    by_owner: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        by_owner.setdefault((call.attempt_id or "", call.agent or ""), []).append(call)
    return tuple(
        _trajectory(
            attempts[attempt_id],
            agent,
            own,
            attempt_rewards.get(attempt_id),
            (agent_rewards or {}).get((attempt_id, agent)),
            call_rewards,
        )
        for (attempt_id, agent), own in sorted(by_owner.items(), key=lambda entry: entry[0])
    )


def _trajectory(
    attempt: Attempt,
    agent: str,
    calls: list[Call],
    reward: float | None,
    own_reward: float | None,
    call_rewards: Mapping[str, float],
) -> Trajectory:
    calls = sorted(calls, key=attrgetter("start_ns", "call_id"))
    tree = token_tree(calls)
    transitions = tuple(
        _transition(
            call,
            call_rewards.get(call.call_id),
            parent_id=None if parent is None else calls[parent].call_id,
            extends=None if extended is None else calls[extended].call_id,
        )
        for call, parent, extended in zip(calls, parents_of(calls, tree), tree.parents, strict=True)
    )
    return Trajectory(attempt, agent, transitions[0].policy, transitions, reward, own_reward)


def _transition(call: Call, reward: float | None, *, parent_id: str | None, extends: str | None) -> Transition:
    if call.agent is None or call.attempt_id is None or call.policy is None:
        raise ValueError(f"call {call.call_id} has no agent, attempt or policy; ask reason_against first")
    if call.policy_version is None or call.behaviour_logprobs is None:
        raise ValueError(f"call {call.call_id} has no policy version or logprobs; ask reason_against first")
    return Transition(
        transition_id=call.call_id,
        agent=call.agent,
        attempt_id=call.attempt_id,
        policy=call.policy,
        policy_version=call.policy_version,
        prompt_ids=call.prompt_ids,
        response_ids=call.response_ids,
        behaviour_logprobs=call.behaviour_logprobs,
        reward=reward,
        start_ns=call.start_ns,
        parent_id=parent_id,
        extends=extends,
        temperature=_behaviour_temperature(call.temperature),
        media=call.media,
    )


def _behaviour_temperature(requested: float) -> float:
    """What vLLM (``SamplingParams``) divided the logits by: below 1e-5 it is greedy and scores at 1; 0.01 is least."""
    return 1.0 if requested < 1e-5 else max(requested, 0.01)
