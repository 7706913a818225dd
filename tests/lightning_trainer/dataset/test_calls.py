"""Samples from plain records: the given numbers come out, every token is accounted for, mistakes are named."""

import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lightning_trainer
from lightning_trainer.dataset.recorded_call import RecordedCall
from lightning_trainer.errors import ConfigError, DatasetError, MalformedCallError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.types import Outcome


def record(**changes) -> dict:
    fields = {"prompt_ids": [1, 2], "response_ids": [3, 4], "logprobs": [-0.5, -0.25], "attempt": "a", "group": "g"}
    return {**fields, **changes}


def test_two_attempts_of_a_group_become_samples() -> None:
    build = lightning_trainer.build_samples(
        [
            record(attempt_reward=1.0),
            record(attempt="b", response_ids=[5], logprobs=[-1.0], attempt_reward=0.0),
        ]
    )
    assert build.batch is not None
    one, two = build.batch.samples
    assert (one.token_ids, one.loss_mask, one.behavior_logprobs) == (
        (1, 2, 3, 4),
        (0, 0, 1, 1),
        (0.0, 0.0, -0.5, -0.25),
    )
    assert (two.token_ids, two.loss_mask) == ((1, 2, 5), (0, 0, 1))
    assert [sample.segments[0].credit for sample in build.batch.samples] == [1.0, 0.0]
    (row,) = build.ledger
    assert (row.outcome, row.tokens, row.calls) == (Outcome.TRAINED, 3, 2)


def test_calls_that_extend_each_other_are_one_sample() -> None:
    first = record(attempt_reward=1.0)
    second = record(prompt_ids=[1, 2, 3, 4, 9], response_ids=[8], logprobs=[-0.1])
    other = record(attempt="b", attempt_reward=0.0)
    build = lightning_trainer.build_samples([first, second, other])
    assert build.batch is not None
    assert build.batch.samples[0].token_ids == (1, 2, 3, 4, 9, 8)
    assert build.batch.samples[0].loss_mask == (0, 0, 1, 1, 0, 1)


def test_rewards_of_single_calls_go_to_schemes_that_ask_for_them() -> None:
    calls = [record(reward=0.25), record(attempt="b", reward=0.75)]
    build = lightning_trainer.build_samples(calls, {"credit": {"scheme": "steps"}})
    assert build.batch is not None
    assert [sample.segments[0].credit for sample in build.batch.samples] == [0.25, 0.75]


def test_a_missing_reward_is_missing_not_zero() -> None:
    build = lightning_trainer.build_samples([record(attempt_reward=1.0), record(attempt="b")])
    assert build.batch is None
    assert "no_reward" in {row.reason for row in build.ledger}


def test_a_call_without_logprobs_is_dropped_with_its_reason() -> None:
    calls = [record(attempt_reward=1.0, logprobs=None), record(attempt="b", attempt_reward=0.0)]
    build = lightning_trainer.build_samples(calls)
    assert ("no_logprobs", 2) in {(row.reason, row.tokens) for row in build.ledger}


def test_a_call_that_is_given_twice_counts_once() -> None:
    calls = [record(call_id="x", attempt_reward=1.0), record(call_id="x"), record(attempt="b", attempt_reward=0.0)]
    build = lightning_trainer.build_samples(calls)
    assert ("delivered_twice", 2) in {(row.reason, row.tokens) for row in build.ledger}


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"promptids": []}, "unknown key 'promptids'"),
        ({"response_ids": [3.5]}, "call 0: response_ids holds 3.5"),
        ({"response_ids": [-1]}, "call 0: response_ids holds -1"),
        ({"temperature": 0}, "temperature is 0"),
        ({"attempt": ""}, "attempt is ''"),
        ({"reward": "good"}, "reward is 'good'"),
        ({"reward": True}, "reward is True"),
        ({"reward": 10**400}, "reward is 1000"),
        ({"attempt_reward": 1e39}, r"attempt_reward is 1e\+39; a reward has a size of at most 1e\+09"),
        ({"reward": -2e9}, r"reward is -2000000000.0; a reward has a size of at most 1e\+09"),
        ({"prompt_ids": None}, "call 0: prompt_ids is None; it is a list of token ids"),
        ({"prompt_ids": "12"}, "prompt_ids is '12'"),
        ({"prompt_ids": [[1, 2]]}, r"prompt_ids holds \[1, 2\]"),
        ({"prompt_ids": [2**31]}, "prompt_ids holds 2147483648; token ids are integers from 0 to 2147483647"),
        ({"prompt_ids": [True]}, "prompt_ids holds True"),
        ({"prompt_ids": np.array([1.0])}, "prompt_ids holds 1.0"),
        ({"prompt_ids": np.array(7)}, r"prompt_ids is array\(7\)"),
        ({"logprobs": [-0.5, None]}, "logprobs holds None at position 1; each is a number, in nats"),
        ({"logprobs": -0.5}, "logprobs is -0.5"),
        ({"policy_version": "3"}, "policy_version is '3'; it is an integer from 0"),
        ({"policy_version": -1}, "policy_version is -1"),
        ({"call_id": 7}, "call_id is 7; it is a name"),
        ({"finish_reason": 1}, "finish_reason is 1; it is a text"),
        ({"complete": "yes"}, "complete is 'yes'; it is true or false"),
        ({"agent": "\ud800"}, "not Unicode"),
    ],
)
def test_a_mistake_in_a_record_is_one_sentence(wrong: dict, sentence: str) -> None:
    with pytest.raises(MalformedCallError, match=sentence):
        lightning_trainer.build_samples([record(**wrong)])


def test_numbers_may_come_from_numpy() -> None:
    plain = [record(attempt_reward=1.0), record(attempt="b", attempt_reward=0.5)]
    arrays = [
        record(
            **{name: np.array(plain[0][name]) for name in ("prompt_ids", "response_ids")},
            logprobs=np.array(plain[0]["logprobs"], dtype=np.float32),
            attempt_reward=np.float32(1.0),
            policy_version=np.int64(0),
            complete=np.bool_(True),
        ),
        record(attempt="b", prompt_ids=list(np.array([1, 2])), attempt_reward=np.float64(0.5), temperature=np.int32(1)),
    ]
    assert lightning_trainer.build_samples(arrays) == lightning_trainer.build_samples(plain)


def test_an_id_is_of_one_call() -> None:
    with pytest.raises(MalformedCallError, match="call 1: call_id 'x' is that of call 0 too, with another attempt"):
        lightning_trainer.build_samples([record(call_id="x"), record(call_id="x", attempt="b")])
    with pytest.raises(MalformedCallError, match="one of them made from the position"):
        lightning_trainer.build_samples([record(call_id="call-1"), record()])


_ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=3)
    | st.binary(max_size=2)
    | st.builds(np.float32, st.floats(width=32))
    | st.builds(np.int64, st.integers(0, 9)),
    lambda inner: st.lists(inner, max_size=3) | st.builds(tuple, st.lists(inner, max_size=2)) | st.sets(st.integers()),
    max_leaves=4,
)


@pytest.mark.long
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from(sorted(f.name for f in fields(RecordedCall))), _ANYTHING), max_size=3))
def test_a_record_is_a_call_or_one_sentence(changes: list[dict]) -> None:
    sentence = "call "
    try:
        build = lightning_trainer.build_samples([record(**one) for one in changes])
    except DatasetError as error:
        sentence = str(error)
    else:
        assert sum(row.calls for row in build.ledger) == len(changes)
    assert sentence.startswith("call ")
    assert "\n" not in sentence


def test_a_key_that_is_missing_is_named() -> None:
    with pytest.raises(MalformedCallError, match="group"):
        lightning_trainer.build_samples([{key: value for key, value in record().items() if key != "group"}])


def test_contradictions_between_records_are_refused() -> None:
    with pytest.raises(MalformedCallError, match="one group"):
        lightning_trainer.build_samples([record(), record(group="h")])
    with pytest.raises(MalformedCallError, match="an attempt has one"):
        lightning_trainer.build_samples([record(attempt_reward=1.0), record(attempt_reward=0.5)])


def test_a_setting_that_is_not_allowed_is_named() -> None:
    with pytest.raises(ConfigError, match="group_by"):
        lightning_trainer.build_samples([record()], {"group_by": "mood"})


@pytest.mark.process
def test_neither_torch_nor_verl_is_imported() -> None:
    program = (
        "import sys, lightning_trainer; lightning_trainer.build_samples([]); "
        "print([m for m in ('torch', 'verl', 'ray', 'transformers', 'pyarrow') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", program], text=True).strip() == "[]"


def test_what_tokens_were_sampled_from_comes_along() -> None:
    support, shaping = support_of(10, [[3, 4], [4]]), Shaping(presence_penalty=0.5)
    experts = RoutedExperts(0, 1, 1, 1, bytes(3))
    build = lightning_trainer.build_samples(
        [
            record(attempt_reward=1.0, support=support, shaping=shaping, routed_experts=experts),
            record(attempt="b", attempt_reward=0.0),
        ]
    )
    assert build.batch is not None
    (segment,) = build.batch.samples[0].segments
    assert (segment.support, segment.shaping, segment.routed_experts) == (support, shaping, experts)
    assert build.batch.samples[0].loss_mask == (0, 0, 1, 0)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"support": [[3], [4]]}, r"support is \[\[3\], \[4\]\]; it is a lightning_trainer.sampling.Support, or None"),
        ({"routed_experts": b"1"}, "routed_experts is b'1'; it is a lightning_trainer.experts.RoutedExperts"),
        ({"routed_experts": RoutedExperts(0, 1, 1, 1, bytes(4))}, "routed_experts is of the first 4 tokens; of"),
        ({"support": support_of(10, [[3]])}, "support is of 1 tokens, and there are 2 response_ids"),
        ({"support": support_of(10, [[3], [5]])}, r"response_ids\[1\] is 4, which support says could not"),
        ({"shaping": {"presence_penalty": 1}}, "shaping is {.*}; it is a lightning_trainer.sampling.Shaping, or None"),
    ],
)
def test_what_contradicts_it_is_named(changes, said) -> None:
    with pytest.raises(MalformedCallError, match=f"call 0: {said}"):
        lightning_trainer.build_samples([record(**changes)])
