"""Calls of engines beside the daemon's own: a policy's only where its configuration says which version they served."""

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.credit import TerminalCredit
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.samples.transitions.eligibility import with_trusted
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.sampling import Shaping
from lightning_trainer.store.batch_codec import decode_batch, encode_batch
from lightning_trainer.types import Fidelity, Outcome

ELSEWHERE = {"policy": None, "policy_version": None, "server": "gpu-box:8000", "model": "m"}


def policy(**changes) -> PolicyConfig:
    engine = {"host": "gpu-box:8000", "model": "m", "version": 2, "logprobs": "processed", **changes}
    algorithm = {"rollout_is": "token"}
    named = {"name": "math", "agents": ["solver"], "model": "random:tiny", "group_size": 2}
    return PolicyConfig.model_validate({**named, "trusted": [engine], "algorithm": algorithm})


@pytest.mark.parametrize(
    ("host", "server", "ours"),
    [
        ("gpu-box:8000", "gpu-box:8000", True),
        ("GPU-box:8000", "gpu-box:8000", True),
        ("gpu-box", "gpu-box:8000", True),  # any port
        ("http://gpu-box:8000/v1", "gpu-box:8000", True),
        ("https://gpu-box", "gpu-box", True),
        ("localhost:8000", "127.0.0.1:8000", True),  # all names of the loopback interface are one host
        ("[fe80::1]:8000", "[fe80::1]:8000", True),
        ("gpu-box:8001", "gpu-box:8000", False),
        ("gpu-box:8000", "gpu-box", False),
        ("gpu", "gpu-box:8000", False),
    ],
)
def test_the_host_is_written_as_for_the_client(make_call, host, server, ours):
    (call,) = with_trusted([make_call("s", **{**ELSEWHERE, "server": server})], policy(host=host))
    assert (call.policy, call.policy_version) == (("math", 2) if ours else (None, None))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "another"},
        {"model": None},
        {"server": None},
        {"agent": "judge"},
        {"fidelity": Fidelity.TEXT_ONLY},
        {"policy": "sql", "policy_version": 7},
    ],
)
def test_what_another_model_or_agent_said_stays_what_it_was(make_call, changes):
    call = make_call("s", **{**ELSEWHERE, **changes})
    assert with_trusted([call], policy()) == [call]


def test_without_a_trusted_engine_nothing_is_claimed(make_call, make_policy):
    calls = [make_call("s", **ELSEWHERE)]
    assert with_trusted(calls, make_policy()) is calls


@pytest.mark.parametrize(
    ("changes", "logprobs", "unknown"),
    [
        ({}, "raw", None),
        ({"temperature": 0.7}, "raw", "before temperature = 0.7"),
        ({"temperature": 0.0}, "raw", "before temperature = 0"),
        ({"shaping": Shaping(presence_penalty=1.0)}, "raw", "before the request's penalties or bias"),
        ({"temperature": 0.7, "shaping": Shaping(presence_penalty=1.0)}, "processed", None),
        ({"sampling_unknown": "top_p = 0.5"}, "processed", "top_p = 0.5"),
        ({"sampling_unknown": "top_p = 0.5"}, "raw", "top_p = 0.5"),
    ],
)
def test_raw_logprobs_are_of_what_was_drawn_from_at_temperature_1_only(make_call, changes, logprobs, unknown):
    (call,) = with_trusted([make_call("s", **ELSEWHERE, **changes)], policy(logprobs=logprobs))
    assert call.sampling_unknown is None if unknown is None else unknown in str(call.sampling_unknown)


def group(make_call, make_attempt, make_evaluation, **changes):
    """Two attempts of a group, of which one earned more, at an engine elsewhere."""
    names = ("a1", "a2")
    calls = [
        make_call(f"s-{name}", (1, 2), (3, number), attempt_id=name, **ELSEWHERE, **changes)
        for number, name in enumerate(names, start=4)
    ]
    evaluations = [make_evaluation(float(number), name) for number, name in enumerate(names)]
    return calls, [make_attempt(name) for name in names], evaluations


def test_of_a_stated_version_they_are_trained_as_that_versions(make_call, make_attempt, make_evaluation):
    build = build_batch(*group(make_call, make_attempt, make_evaluation), policy(version=2), 1)
    assert build.batch is not None
    assert {segment.policy_version for sample in build.batch.samples for segment in sample.segments} == {2}
    assert sampling_metrics(build.batch, [0, 2, 3])["staleness/mean"] == 1.0
    (row,) = build.ledger
    assert (row.policy, row.policy_version, row.outcome, row.tokens) == ("math", 2, Outcome.TRAINED, 4)


def test_of_an_unknown_version_they_are_trained_without_an_age(make_call, make_attempt, make_evaluation):
    made = group(make_call, make_attempt, make_evaluation)
    build = build_batch(*made, policy(version="unknown"), 1, versions={3})
    assert build.batch is not None
    assert {segment.policy_version for sample in build.batch.samples for segment in sample.segments} == {None}
    assert not {"staleness/mean", "staleness/max"} & set(sampling_metrics(build.batch, [0, 1]))
    assert {row.policy_version for row in build.ledger} == {None}
    assert decode_batch(encode_batch(build.batch)) == build.batch


def test_a_stated_version_can_be_stale(make_call, make_attempt, make_evaluation):
    build = build_batch(*group(make_call, make_attempt, make_evaluation), policy(version=2), 1, versions={3})
    assert build.batch is None
    assert {row.reason for row in build.ledger} == {Reason.STALE}


def test_nothing_is_trained_where_no_line_says_so(make_call, make_attempt, make_evaluation, make_policy):
    build = build_batch(*group(make_call, make_attempt, make_evaluation), make_policy(credit=TerminalCredit()), 1)
    assert build.batch is None
    assert {row.reason for row in build.ledger} == {Reason.NO_POLICY_VERSION}
    assert "[[policy.trusted]]" in Reason.NO_POLICY_VERSION.explanation


def test_the_agents_span_above_such_a_call_is_not_the_calls_own(make_call, make_attempt, make_evaluation):
    """The client's record names its server: the span above it is the agent's, whose reward is the attempt's."""
    (call,) = with_trusted([make_call("chat", parent_span_id="agent", **ELSEWHERE)], policy())
    rewards = read_rewards([make_evaluation(1.0, span_id="agent")], [call], {"a1": make_attempt("a1")}, "reward", ())
    assert (rewards.of_calls, rewards.of_attempts) == ({}, {"a1": 1.0})
