from dataclasses import replace
from itertools import permutations

import pytest

from lightning_trainer.samples.transitions.deduplication import deduplicate


def test_the_same_record_twice_is_one_call(make_call):
    call = make_call("s1")
    deliveries = deduplicate([call, call])
    assert deliveries.kept == (call,)
    assert deliveries.repeated == ((call, call),)


def test_the_fullest_record_of_a_response_is_kept_whatever_arrives_first(make_call):
    gateway = make_call("gateway", response_id="r")
    client = make_call("client", response_id="r", policy_version=None, behavior_logprobs=None)
    foreign = make_call("foreign", response_id="r", policy_version=None, attempt_id=None)
    for order in permutations([gateway, client, foreign]):
        deliveries = deduplicate(order)
        assert deliveries.kept == (gateway,)
        assert {repeat.call_id for repeat, _ in deliveries.repeated} == {"client/0", "foreign/0"}


def test_the_choices_of_one_response_are_different_calls(make_call):
    choices = [make_call("s", choice=choice, response_id="r") for choice in range(3)]
    assert deduplicate(choices).kept == tuple(choices)


@pytest.mark.parametrize("difference", [{"response_ids": (9, 9)}, {"prompt_ids": (9,)}, {"attempt_id": "a2"}])
def test_a_server_that_gives_every_response_one_id_loses_nothing(make_call, difference):
    first = make_call("s1", response_id="always-the-same")
    second = replace(make_call("s2", response_id="always-the-same"), **difference)
    assert len(deduplicate([first, second]).kept) == 2


def test_calls_without_tokens_are_not_one_because_their_server_gave_them_one_id(make_call):
    calls = [make_call(f"s{n}", (), (), response_id="chatcmpl-7", policy_version=None) for n in range(3)]
    assert deduplicate(calls).kept == tuple(calls)


def test_two_calls_that_the_gateway_recorded_are_two_though_they_sampled_the_same_tokens(make_call):
    calls = [make_call("s1", response_id="chosen"), make_call("s2", response_id="chosen")]
    assert deduplicate(calls).kept == tuple(calls)


def test_calls_without_a_response_id_are_never_merged(make_call):
    assert len(deduplicate([make_call("s1", response_id=None), make_call("s2", response_id=None)]).kept) == 2
