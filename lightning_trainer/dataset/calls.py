"""Samples from plain records of model calls, for users who have no spans, made by one pure function.

    build = build_samples(
        [
            {"prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.1], "attempt": "a", "group": "g",
             "attempt_reward": 1.0},
            {"prompt_ids": [1, 2], "response_ids": [4], "logprobs": [-0.9], "attempt": "b", "group": "g",
             "attempt_reward": 0.0},
        ]
    )

It takes the same path as spans (``samples.batches.build_batch``), so the same promises hold.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.recorded_call import RecordedCall, checked
from lightning_trainer.errors import ConfigError, MalformedCallError
from lightning_trainer.samples.batches import Build, build_batch
from lightning_trainer.types import Attempt, AttemptState, Call, Evaluation, Fidelity

_DEFAULTS: Mapping[str, Any] = {"name": "policy", "agents": ("*",), "model": "(not loaded)"}
_TRACE = "0" * 32


def build_samples(
    calls: Iterable[RecordedCall | Mapping[str, Any]],
    policy: PolicyConfig | Mapping[str, Any] | None = None,
    *,
    step: int = 1,
) -> Build:
    """Build samples, and the account of every sampled token.

    Args:
        calls: :class:`RecordedCall`, or mappings with the same keys.
        policy: settings of a ``[[policy]]`` section (``credit``, ``algorithm``, ``group_by``, ``max_sample_tokens``
            ...); without a name it is called "policy", and without ``agents`` it claims all agents.
        step: number of the batch.

    Returns:
        ``batch.samples`` to train on (``batch`` is None if there are none), ``ledger``, ``groups``, ``problems``.

    Raises:
        MalformedCallError: a record lacks something or contradicts another one; the message names it.
        ConfigError: a setting of the policy is not allowed.
    """
    return build_calls(((f"call {position}", record) for position, record in enumerate(calls)), policy, step=step)


def build_calls(
    calls: Iterable[tuple[str, RecordedCall | Mapping[str, Any]]],
    policy: PolicyConfig | Mapping[str, Any] | None = None,
    *,
    step: int = 1,
) -> Build:
    """Do as :func:`build_samples` does, for records with their place in words (file and line), which messages use."""
    settings = _policy(policy)
    reward_name = _reward_name(settings)
    attempts: dict[str, tuple[Attempt, str]] = {}
    attempt_rewards: dict[str, tuple[float, str]] = {}
    made: list[Call] = []
    known: dict[str, tuple[RecordedCall, str]] = {}
    evaluations: list[Evaluation] = []
    for position, (where, record) in enumerate(calls):
        recorded = checked(record, where)
        call = _call(recorded, position, settings.name)
        _refuse_another_call_of_its_id(call, recorded, where, known)
        made.append(call)
        attempt = _attempt(recorded)
        first, there = attempts.setdefault(recorded.attempt, (attempt, where))
        if first != attempt:
            raise MalformedCallError(
                f"{where}: attempt {recorded.attempt!r} is in group {recorded.group!r} here and in "
                f"{first.group_id!r} in {there}; an attempt is in one group"
            )
        if recorded.reward is not None:
            evaluations.append(_evaluation(reward_name, recorded.reward, recorded.attempt, call.call_id))
        if (reward := recorded.attempt_reward) is None:
            continue
        earlier, there = attempt_rewards.setdefault(recorded.attempt, (reward, where))
        if earlier != reward and not (math.isnan(earlier) and math.isnan(reward)):
            raise MalformedCallError(
                f"{where}: attempt {recorded.attempt!r} has the reward {reward} here and {earlier} in {there}; an "
                "attempt has one"
            )
    evaluations += [_evaluation(reward_name, reward, name, None) for name, (reward, _) in attempt_rewards.items()]
    return build_batch(made, [attempt for attempt, _ in attempts.values()], evaluations, settings, step)


def _refuse_another_call_of_its_id(
    call: Call, recorded: RecordedCall, where: str, known: dict[str, tuple[RecordedCall, str]]
) -> None:
    """Refuse two different records with one id, because one of them would be lost; equal ones are one call."""
    first, there = known.setdefault(call.call_id, (recorded, where))
    if first is recorded:
        return
    if recorded.call_id is None or first.call_id is None:
        raise MalformedCallError(
            f"{where}: {call.call_id!r} is its id and that of {there}, one of them made from the position; give every "
            "call an id of its own, or none"
        )
    if differing := [name for name in _SAME if getattr(first, name) != getattr(recorded, name)]:
        raise MalformedCallError(
            f"{where}: call_id {recorded.call_id!r} is that of {there} too, with another {differing[0]}; an id is of "
            "one call"
        )


_SAME = ("prompt_ids", "response_ids", "attempt", "agent", "policy_version")
"""Fields in which two records of one call must agree."""


def _policy(policy: PolicyConfig | Mapping[str, Any] | None) -> PolicyConfig:
    if isinstance(policy, PolicyConfig):
        return policy
    try:
        return PolicyConfig.model_validate({**_DEFAULTS, **(policy or {})})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"policy: {where or 'settings'}: {first['msg'].removeprefix('Value error, ')}") from error


def _reward_name(policy: PolicyConfig) -> str:
    names = list(policy.reward_weights)
    if len(names) > 1:
        raise ConfigError(
            f"policy.reward names {len(names)} evaluations ({', '.join(names)}), and a recorded call has one reward: "
            "weigh them yourself and name one"
        )
    return names[0]


def _call(recorded: RecordedCall, position: int, policy: str) -> Call:
    # The position serves as the time: an attempt's calls come one after the other, never at the same time.
    name = recorded.call_id or f"call-{position}"
    span_id, _, choice = name.rpartition("/")
    return Call(
        call_id=name if span_id and choice else f"{name}/0",
        trace_id=_TRACE,
        span_id=span_id or name,
        parent_span_id=None,
        response_id=None,
        agent=recorded.agent,
        rollout_id=recorded.attempt,
        attempt_id=recorded.attempt,
        policy=policy,
        policy_version=recorded.policy_version,
        prompt_ids=tuple(recorded.prompt_ids),
        response_ids=tuple(recorded.response_ids),
        behavior_logprobs=None if recorded.logprobs is None else tuple(recorded.logprobs),
        finish_reason=recorded.finish_reason,
        complete=recorded.complete,
        start_ns=2 * position,
        end_ns=2 * position + 1,
        fidelity=Fidelity.EXACT,
        temperature=recorded.temperature,
        shaping=recorded.shaping,
        support=recorded.support,
        routed_experts=recorded.routed_experts,
    )


def _attempt(recorded: RecordedCall) -> Attempt:
    return Attempt(
        attempt_id=recorded.attempt,
        rollout_id=recorded.attempt,
        task_id=recorded.group,
        group_id=recorded.group,
        state=AttemptState.SUCCEEDED,
        ended_ns=0,
    )


def _evaluation(name: str, value: float, attempt_id: str, call_id: str | None) -> Evaluation:
    return Evaluation(name=name, value=value, rollout_id=attempt_id, attempt_id=attempt_id, span_id=call_id, time_ns=0)
