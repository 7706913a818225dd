"""Samples from plain records of model calls, for those who have no spans: one pure function.

    build = build_samples(
        [
            {"prompt_ids": [1, 2], "response_ids": [3], "logprobs": [-0.1], "attempt": "a", "group": "g",
             "attempt_reward": 1.0},
            {"prompt_ids": [1, 2], "response_ids": [4], "logprobs": [-0.9], "attempt": "b", "group": "g",
             "attempt_reward": 0.0},
        ]
    )

It goes the way that spans go (``training.batches.build_batch``), so everything promised of that holds here too.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pydantic import ValidationError

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import ConfigError, MalformedCallError
from lightning_trainer.sampling import Shaping, Support
from lightning_trainer.training.batches import Build, build_batch
from lightning_trainer.types import Attempt, AttemptState, Call, Evaluation, Fidelity

_DEFAULTS: Mapping[str, Any] = {"name": "policy", "agents": ("*",), "model": "(not loaded)"}
_TRACE = "0" * 32


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One answer of the policy to one prompt, with the ids that the engine saw and sampled."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    logprobs: Sequence[float] | None
    """Of the sampled ids under the policy that sampled them, nats, at ``temperature``. None: not known, not trained."""
    attempt: str
    """The try at a task that the call is part of. Its calls are given in the order in which they happened."""
    group: str
    """Attempts of one group are compared with each other: tries at the same task."""
    agent: str = "agent"
    reward: float | None = None
    """Of this call alone. None: nothing scored it, which is not zero."""
    attempt_reward: float | None = None
    """Of the whole attempt; on one of its calls, or the same on several."""
    policy_version: int = 0
    temperature: float = 1.0
    shaping: Shaping | None = None
    """Bias and penalties that ``logprobs`` were worked out with; None: none."""
    support: Support | None = None
    """What each token of the response was drawn from (a grammar, top_p ...); None: all of the vocabulary."""
    finish_reason: str | None = None
    complete: bool = True
    """False where the answer was cut off before the engine was done."""
    call_id: str | None = None
    """Made from the position where there is none. Two calls with one id are one call that was recorded twice."""


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
            ...); without a name it is called "policy", and without ``agents`` it claims all of them.
        step: number that the batch gets.

    Returns:
        ``batch.samples`` to train on (``batch`` is None where there is nothing), ``ledger``, ``groups``, ``problems``.

    Raises:
        MalformedCallError: a record lacks something or contradicts another one; the message names it.
        ConfigError: a setting of the policy is not allowed.
    """
    settings = _policy(policy)
    reward_name = _reward_name(settings)
    attempts: dict[str, Attempt] = {}
    attempt_rewards: dict[str, float] = {}
    made: list[Call] = []
    evaluations: list[Evaluation] = []
    for position, record in enumerate(calls):
        recorded = _record(record, position)
        call = _call(recorded, position, settings.name)
        made.append(call)
        attempt = _attempt(recorded)
        if (known := attempts.setdefault(recorded.attempt, attempt)) != attempt:
            raise MalformedCallError(
                f"call {position}: attempt {recorded.attempt!r} is in group {recorded.group!r} here and in "
                f"{known.group_id!r} before; an attempt is in one group"
            )
        if recorded.reward is not None:
            evaluations.append(_evaluation(reward_name, recorded.reward, recorded.attempt, call.call_id))
        if (reward := recorded.attempt_reward) is None:
            continue
        earlier = attempt_rewards.setdefault(recorded.attempt, reward)
        if earlier is not reward and earlier != reward:
            raise MalformedCallError(
                f"call {position}: attempt {recorded.attempt!r} has the reward {reward} here and {earlier} before; an "
                "attempt has one"
            )
    evaluations += [_evaluation(reward_name, reward, name, None) for name, reward in attempt_rewards.items()]
    return build_batch(made, list(attempts.values()), evaluations, settings, step)


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


def _record(record: RecordedCall | Mapping[str, Any], position: int) -> RecordedCall:
    if not isinstance(record, RecordedCall):
        known = {field.name for field in fields(RecordedCall)}
        if unknown := sorted(set(record) - known):
            raise MalformedCallError(
                f"call {position}: unknown key {unknown[0]!r}; there are {', '.join(sorted(known))}"
            )
        try:
            record = RecordedCall(**record)
        except TypeError as error:
            raise MalformedCallError(f"call {position}: {str(error).partition(') ')[2] or error}") from error
    for name in ("prompt_ids", "response_ids"):
        if wrong := [
            one for one in getattr(record, name) if not isinstance(one, int) or isinstance(one, bool) or one < 0
        ]:
            raise MalformedCallError(f"call {position}: {name} holds {wrong[0]!r}; token ids are integers from 0")
    if not (isinstance(record.temperature, int | float) and 0 < record.temperature < math.inf):
        raise MalformedCallError(f"call {position}: temperature is {record.temperature!r}; it is a positive number")
    for name, kind in (("shaping", Shaping), ("support", Support)):
        if not isinstance(getattr(record, name), kind | None):
            raise MalformedCallError(
                f"call {position}: {name} is a {type(getattr(record, name)).__name__}; it is a "
                f"lightning_trainer.sampling.{kind.__name__} or None"
            )
    if record.support is not None:
        if len(record.support) != len(record.response_ids):
            raise MalformedCallError(
                f"call {position}: support is of {len(record.support)} tokens, and there are "
                f"{len(record.response_ids)} response_ids; it has one entry for each"
            )
        if (place := record.support.first_outside(record.response_ids)) is not None:
            raise MalformedCallError(
                f"call {position}: response_ids[{place}] is {record.response_ids[place]}, which support says could "
                "not have been sampled"
            )
    for name in ("attempt", "group", "agent"):
        if not isinstance(getattr(record, name), str) or not getattr(record, name):
            raise MalformedCallError(f"call {position}: {name} is {getattr(record, name)!r}; it is a name")
    for name in ("reward", "attempt_reward"):
        value = getattr(record, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise MalformedCallError(
                f"call {position}: {name} is {value!r}; it is a number, or None where there is none"
            )
    return record


def _call(recorded: RecordedCall, position: int, policy: str) -> Call:
    # The position stands for the time: calls of an attempt are one after the other, never beside each other.
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
        behaviour_logprobs=None if recorded.logprobs is None else tuple(map(float, recorded.logprobs)),
        finish_reason=recorded.finish_reason,
        complete=recorded.complete,
        start_ns=2 * position,
        end_ns=2 * position + 1,
        fidelity=Fidelity.EXACT,
        temperature=float(recorded.temperature),
        shaping=recorded.shaping,
        support=recorded.support,
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
    return Evaluation(
        name=name, value=float(value), rollout_id=attempt_id, attempt_id=attempt_id, span_id=call_id, time_ns=0
    )
