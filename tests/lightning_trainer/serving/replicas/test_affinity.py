"""Conversations stay where they are, and no engine gets more than its bounded share."""

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.serving.affinity import Affinity, AffinityCounts

ENGINES = ["a", "b", "c"]


@pytest.fixture
def affinity() -> Affinity[str]:
    return Affinity()


def idle() -> dict[str, int]:
    return dict.fromkeys(ENGINES, 0)


def test_a_conversation_stays_and_conversations_are_spread_though_nothing_runs(affinity):
    homes = {f"talk {number}": affinity.choose(ENGINES, idle(), f"talk {number}") for number in range(300)}
    assert min(Counter(homes.values()).values()) == 100
    for talk, home in homes.items():
        assert affinity.choose(ENGINES, idle(), talk) == home
    assert affinity.counts == AffinityCounts(stayed=300, moved=0)


def test_it_stays_though_others_have_less_to_do_and_moves_where_the_bound_says_so(affinity):
    home = affinity.choose(ENGINES[:2], {"a": 0, "b": 1}, "talk")
    assert home == "a"
    assert affinity.choose(ENGINES[:2], {"a": 3, "b": 1}, "talk") == "a"
    assert affinity.choose(ENGINES[:2], {"a": 4, "b": 1}, "talk") == "b", "1.25 times three calls each is four"
    assert affinity.choose(ENGINES[:2], {"a": 0, "b": 1}, "talk") == "b", "its newest turn is cached there"
    assert affinity.counts == AffinityCounts(stayed=2, moved=1)


def test_it_moves_where_its_engine_is_gone(affinity):
    home = affinity.choose(ENGINES, idle(), "talk")
    others = [one for one in ENGINES if one != home]
    other = affinity.choose(others, idle(), "talk")
    assert other in others
    assert affinity.choose(ENGINES, idle(), "talk") == other
    assert affinity.counts == AffinityCounts(stayed=1, moved=1)


def test_a_call_without_a_conversation_goes_where_the_fewest_run(affinity):
    assert affinity.choose(ENGINES, {"a": 2, "b": 1, "c": 1}, None) == "b"
    assert affinity.counts == AffinityCounts()


def test_those_without_a_call_for_longest_are_forgotten():
    affinity: Affinity[str] = Affinity(remembered=2)
    loads = idle()
    homes = {}
    for talk in ("one", "two", "three"):
        homes[talk] = affinity.choose(ENGINES, loads, talk)
        loads[homes[talk]] += 1
    assert sorted(homes.values()) == ENGINES
    assert affinity.choose(ENGINES, idle(), "three") == homes["three"]
    affinity.choose(ENGINES, {**idle(), homes["one"]: 1}, "one")
    assert affinity.counts == AffinityCounts(stayed=1, moved=0), "of the first one nothing was known"


@given(st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 40))
def test_no_engine_gets_more_than_its_bounded_share(seed: int, engines: int, talks: int):
    choose = random.Random(seed)
    names = [str(number) for number in range(engines)]
    affinity: Affinity[str] = Affinity()
    in_flight = dict.fromkeys(names, 0)
    running: list[str] = []
    for _ in range(200):
        if running and choose.random() < 0.45:
            in_flight[running.pop(choose.randrange(len(running)))] -= 1
            continue
        chosen = affinity.choose(names, in_flight, f"talk {choose.randrange(talks)}")
        in_flight[chosen] += 1
        running.append(chosen)
        assert in_flight[chosen] <= math.ceil(1.25 * len(running) / engines)
