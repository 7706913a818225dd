"""Calls to trajectories: one for each agent of each attempt, in the order and with the edges of ``call_graph.py``."""

from collections.abc import Container, Iterable, Mapping

from lightning_trainer.samples.transitions.call_graph import CallGraph, call_graph
from lightning_trainer.types import Attempt, Call, Trajectory, Transition


def trajectories_of(
    calls: Iterable[Call],
    attempts: Mapping[str, Attempt],
    attempt_rewards: Mapping[str, float],
    call_rewards: Mapping[str, float],
    agent_rewards: Mapping[tuple[str, str], float] | None = None,
    gaps: Iterable[Call] = (),
) -> tuple[Trajectory, ...]:
    """Return the trajectories by attempt id, then agent.

    Args:
        calls: those that there is no reason against (``eligibility.reason_against``).
        attempts: by id; has every attempt of the calls.
        attempt_rewards: by attempt id, of those that were scored.
        call_rewards: by call id, of those that were scored.
        agent_rewards: by attempt id and agent, of the agents that were scored apart from their attempt.
        gaps: calls that there is a reason against and that happened in the same attempts
            (``eligibility.took_part``): reward flows across them.

    Raises:
        ValueError: there is a reason against one of the calls.
    """
    by_owner: dict[tuple[str, str], list[Call]] = {}
    for call in calls:
        by_owner.setdefault((call.attempt_id or "", call.agent or ""), []).append(call)
    trainable: dict[tuple[str, str], frozenset[str]] = {}
    for call in gaps:
        owner = (call.attempt_id or "", call.agent or "")
        own = by_owner.setdefault(owner, [])
        if owner not in trainable:
            trainable[owner] = frozenset(known.call_id for known in own)
        own.append(call)
    return tuple(
        _trajectory(
            attempts[attempt_id],
            agent,
            call_graph(own, trainable.get((attempt_id, agent))),
            trainable.get((attempt_id, agent)),
            attempt_rewards.get(attempt_id),
            (agent_rewards or {}).get((attempt_id, agent)),
            call_rewards,
        )
        for (attempt_id, agent), own in sorted(by_owner.items(), key=lambda entry: entry[0])
    )


def _trajectory(
    attempt: Attempt,
    agent: str,
    graph: CallGraph,
    trainable: Container[str] | None,
    reward: float | None,
    own_reward: float | None,
    call_rewards: Mapping[str, float],
) -> Trajectory:
    calls = graph.calls
    transitions = [
        _transition(
            call,
            call_rewards.get(call.call_id),
            None if parent is None else calls[parent].call_id,
            None if extended is None else calls[extended].call_id,
            gap=trainable is not None and call.call_id not in trainable,
        )
        for call, parent, extended in zip(calls, graph.parents, graph.extends, strict=True)
    ]
    policy = next((step.policy for step in transitions if not step.gap), "")
    return Trajectory(attempt, agent, policy, tuple(transitions), reward, own_reward)


def _transition(
    call: Call, reward: float | None, parent_id: str | None, extends: str | None, *, gap: bool
) -> Transition:
    if call.agent is None or call.attempt_id is None:
        raise ValueError(f"call {call.call_id} has no agent or attempt; ask reason_against first")
    if not gap and (call.policy is None or call.behavior_logprobs is None):
        raise ValueError(f"call {call.call_id} has no policy or logprobs; ask reason_against first")
    # By position, since naming the fields takes longer than setting them.
    return Transition(
        call.call_id,
        call.agent,
        call.attempt_id,
        call.policy or "",
        call.policy_version,
        call.prompt_ids,
        call.response_ids,
        call.behavior_logprobs or (),
        reward,
        call.start_ns,
        parent_id,
        _behavior_temperature(call.temperature),
        extends,
        call.media,
        None,
        call.shaping,
        call.support,
        call.state,
        gap,
        call.routed_experts,
    )


def _behavior_temperature(requested: float) -> float:
    """Return what vLLM (``SamplingParams``) divided the logits by: at 0 (greedy) 1; above 0, at least 0.01."""
    return 1.0 if requested <= 0 else max(0.01, requested)
