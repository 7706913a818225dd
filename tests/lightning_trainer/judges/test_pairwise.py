"""Pairs in both orders become scores; a judge that goes by the order gives ties, and a failure gives nothing."""

import itertools
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.judges.kinds.tournament import next_round, rounds_of, scores, strengths
from lightning_trainer.judges.models.budget import Budget

STRENGTH = {"worst": 1, "middling": 2, "good": 3, "best": 4}


def shown(text):
    """The codes of a question in their order, with how strong what stands behind each is."""
    blocks = re.findall(r"<attempt (\w+)>(.*?)</attempt \1>", json.loads(text)[1]["content"], re.DOTALL)
    return [(code, next(STRENGTH[word] for word in STRENGTH if word in block)) for code, block in blocks]


def fair(text):
    (code, _), (other, _) = first, second = shown(text)
    if first[1] == second[1]:
        return {"reason": "alike", "better": "tie"}
    return {"reason": "it is so", "better": code if first[1] > second[1] else other}


def values(judged):
    return {name: one.value for name, one in judged.items()}


async def test_what_is_better_scores_higher(judge, script):
    script.answers = [fair]
    judged, _ = await judge("pairwise", {"a": "worst", "b": "best", "c": "middling", "d": "good"})
    order = sorted(judged, key=lambda name: judged[name].value)
    assert order == ["a", "c", "d", "b"]
    assert all(0 < one.value < 1 for one in judged.values())
    assert len(script.bodies) == 12  # six pairs, each in both orders
    assert "better than a: it is so" in judged["b"].reason


async def test_a_judge_that_goes_by_the_order_gives_ties(judge, script):
    script.answers = [lambda text: {"reason": "it stands first", "better": shown(text)[0][0]}]
    judged, _ = await judge("pairwise", {"a": "worst", "b": "best", "c": "good"})
    assert list(values(judged).values()) == pytest.approx([0.5] * 3)


async def test_the_same_words_are_a_tie_and_cost_nothing(judge, script):
    judged, _ = await judge("pairwise", {"a": "good", "b": "good"})
    assert list(values(judged).values()) == pytest.approx([0.5, 0.5])
    assert script.bodies == []


@pytest.mark.parametrize("answer", ["first", {"reason": "", "better": "A"}, {"better": "tie"}, (401, {}, b"no")])
async def test_what_cannot_be_used_is_missing(judge, script, answer):
    script.answers = [answer]
    judged, _ = await judge("pairwise", {"a": "worst", "b": "best"}, retries=0)
    assert values(judged) == {"a": None, "b": None}


async def test_an_attempt_that_could_be_compared_with_nobody_is_missing(judge, script):
    script.answers = [lambda text: "no idea" if "worst" in text else fair(text)]
    judged, _ = await judge("pairwise", {"a": "worst", "b": "best", "c": "middling"}, retries=0)
    assert judged["a"].value is None
    assert judged["b"].value > 0.5 > judged["c"].value


@pytest.mark.parametrize(
    ("calls", "all_pairs", "compared"), [(6, 6, 0), (11, 6, 0), (2, 6, 2), (12, 6, 4), (6, 2, 0), (4, 2, 0)]
)
async def test_what_a_budget_ends_in_the_middle_is_missing(judge, judge_config, script, calls, all_pairs, compared):
    """Half of a tournament would favor whoever was compared with the weak ones."""
    script.answers = [fair]
    names = {"a": "worst", "b": "best", "c": "middling", "d": "good"}
    budget = Budget(judge_config("pairwise", budget={"calls": calls}).budget)
    judged, _ = await judge("pairwise", names, budget, concurrency=1, all_pairs=all_pairs)
    assert len([one for one in judged.values() if one.value is not None]) == compared
    assert all(one.value is not None or "its budget is spent" in one.reason for one in judged.values())


async def test_one_pair_whose_answers_cannot_be_used_does_not_count(judge, script):
    names = {"a": "worst", "b": "best", "c": "middling", "d": "good"}
    script.answers = [lambda text: "no idea" if "worst" in text and "best" in text else fair(text)]
    judged, _ = await judge("pairwise", names, retries=0)
    assert sorted(judged, key=lambda name: judged[name].value) == ["a", "c", "d", "b"]


async def test_a_large_group_costs_n_log_n(judge, script):
    texts = {f"a{n:02}": f"{word} {n}" for n, word in enumerate(itertools.islice(itertools.cycle(STRENGTH), 16))}
    script.answers = [fair]
    judged, _ = await judge("pairwise", texts, concurrency=16)
    assert len(script.bodies) <= 2 * 8 * rounds_of(16)
    means = {
        word: sum(judged[name].value for name, text in texts.items() if text.startswith(word)) / 4 for word in STRENGTH
    }
    assert sorted(means, key=means.__getitem__) == list(STRENGTH)


# -- Bradley-Terry ---------------------------------------------------------------------------------------------------


def test_two_of_which_one_always_wins():
    """The winner has a win and half a one of the prior, and as many are expected of it: 3/2 = s/(s + w) + s/(s + 1)."""
    strong, weak = strengths(2, {(0, 1): 1.0})
    assert strong * weak == pytest.approx(1.0)
    assert pytest.approx(strong / (strong + weak) + strong / (strong + 1)) == 1.5
    assert scores(2, {(0, 1): 1.0}) == pytest.approx([strong / (strong + weak), weak / (strong + weak)])


results_of_five = st.dictionaries(
    st.sampled_from(list(itertools.combinations(range(5), 2))), st.sampled_from([0.0, 0.5, 1.0]), min_size=1
)


@given(results_of_five)
def test_the_fit_is_at_the_maximum_of_the_likelihood(results):
    """There the expected wins of each, with the prior's half a win, are those that it has."""
    fitted = strengths(5, results)
    for place in range(5):
        won = 0.5 + sum(r if pair[0] == place else 1 - r for pair, r in results.items() if place in pair)
        others = [sum(pair) - place for pair in results if place in pair]
        expected = fitted[place] / (fitted[place] + 1)
        expected += sum(fitted[place] / (fitted[place] + fitted[other]) for other in others)
        assert expected == pytest.approx(won, abs=1e-6)


@given(results_of_five)
def test_scores_are_probabilities_and_add_up_to_half_of_those_who_have_one(results):
    found = [score for score in scores(5, results) if score is not None]
    assert all(0 < score < 1 for score in found)
    assert sum(found) == pytest.approx(len(found) / 2)


@given(st.integers(2, 20), st.data())
def test_a_round_has_everybody_once_and_nobody_twice_with_the_same(places, data):
    met = set(data.draw(st.lists(st.sampled_from(list(itertools.combinations(range(places), 2))), max_size=30)))
    pairs = next_round(places, {}, met)
    named = [place for pair in pairs for place in pair]
    assert len(named) == len(set(named))
    assert not met & set(pairs)
    if not met:
        assert len(pairs) == places // 2
    assert rounds_of(places) <= math.log2(places) + 2
