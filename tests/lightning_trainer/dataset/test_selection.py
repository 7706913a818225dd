"""Demonstrations and pairs: who is shown, who is compared, and why everything else is not."""

import json
from collections import Counter

import pytest

from lightning_trainer.dataset.examples import Needs
from lightning_trainer.dataset.formats import trl
from lightning_trainer.dataset.reading import read_recording
from lightning_trainer.dataset.rows import example_row, pair_row
from lightning_trainer.dataset.selection import demonstrations, preferences
from lightning_trainer.types import Fidelity


def reasons(ledger) -> Counter:
    found: Counter = Counter()
    for row in ledger:
        found[row.reason] += row.calls
    return found


@pytest.fixture
def recording(attempt_spans):
    """Right exactly, right in words only, wrong, failed, unscored, and someone else's."""
    return read_recording(
        [
            *attempt_spans("a1", 1, reward=1.0),
            *attempt_spans("a2", 2, reward=0.75, answer="five", exact=False),
            *attempt_spans("a3", 3, reward=0.0, response=(5, 6, 7), answer="6"),
            *attempt_spans("a4", 4, reward=0.25, failed=True, response=(8,), answer="4"),
            *attempt_spans("a5", 5, reward=None),
            *attempt_spans("a6", 6, reward=1.0, agent="stranger"),
        ],
        with_words=True,
    )


def test_demonstrations_are_what_earned_enough(recording, make_policy) -> None:
    found = demonstrations(recording, make_policy(), min_reward=0.5)
    assert [(one.attempt_id, one.reward, one.fidelity) for one in found.examples] == [
        ("a1", 1.0, Fidelity.EXACT),
        ("a2", 0.75, Fidelity.TEXT_ONLY),
    ]
    assert reasons(found.ledger) == {
        "demonstrated": 2,
        "low_reward": 1,
        "failed_attempt": 1,
        "no_reward": 1,
        "not_selected": 1,
    }


def test_a_part_of_a_weighted_reward_is_no_reward(recording, make_policy) -> None:
    found = demonstrations(recording, make_policy(reward={"reward": 1.0, "format": 0.2}), min_reward=0.5)
    assert found.examples == ()
    assert reasons(found.ledger)["no_reward"] == 4
    assert any("nobody in it was given format" in problem for problem in found.problems)


def test_without_a_least_reward_unscored_calls_are_shown_too(recording, make_policy) -> None:
    assert len(demonstrations(recording, make_policy()).examples) == 4


def test_a_demonstration_has_its_words_and_its_ids(recording, make_policy) -> None:
    exact, words = demonstrations(recording, make_policy(), min_reward=0.5).examples
    assert trl.conversational_row(exact) == {
        "prompt": [{"role": "user", "content": "2+3?"}],
        "completion": [{"role": "assistant", "content": "5"}],
    }
    assert trl.tokenized_row(exact) == {"input_ids": [1, 2, 3, 4], "completion_mask": [0, 0, 1, 1]}
    assert example_row(words)["prompt_ids"] is None
    assert example_row(words)["answer"] == {"role": "assistant", "content": "five"}


def test_how_long_an_example_may_be_is_for_what_learns_from_it_to_say(attempt_spans, make_policy) -> None:
    spans = [
        *attempt_spans("a1", 1, reward=1.0, prompt=range(3000)),
        *attempt_spans("a2", 2, reward=0.0, prompt=range(3000), response=(5,), answer="6"),
    ]
    recording = read_recording(spans, with_words=True)
    assert len(demonstrations(recording, make_policy(max_sample_tokens=100)).examples) == 2
    assert len(preferences(recording, make_policy(max_sample_tokens=100)).pairs) == 1


@pytest.mark.parametrize(
    ("exact", "needs", "shown"), [(False, Needs.EITHER, 0), (True, Needs.EITHER, 1), (True, Needs.WORDS, 0)]
)
def test_words_that_a_limit_of_tokens_cut_are_not_imitated(attempt_spans, make_policy, exact, needs, shown) -> None:
    """They would be closed with the end token; ids are as the model left them."""
    spans = attempt_spans("a1", 1, reward=1.0, answer="The answer is", exact=exact, finish="length")
    found = demonstrations(read_recording(spans, with_words=True), make_policy(), needs)
    assert [example_row(example)["truncated"] for example in found.examples] == [True] * shown
    assert reasons(found.ledger) == {"demonstrated" if shown else "truncated": 1}


def test_words_that_a_limit_of_tokens_cut_are_never_the_better_ones(attempt_spans, make_policy) -> None:
    def pairs(*said) -> tuple[list, Counter]:
        spans = []
        for number, (answer, reward, finish) in enumerate(said, start=1):
            spans += attempt_spans(f"a{number}", number, reward=reward, answer=answer, exact=False, finish=finish)
        found = preferences(read_recording(spans, with_words=True), make_policy())
        return [(one.chosen.attempt_id, one.rejected.attempt_id) for one in found.pairs], reasons(found.ledger)

    cut, good, bad = ("The answer", 1.0, "length"), ("5", 0.5, "stop"), ("6", 0.0, "stop")
    assert pairs(cut, bad) == ([], {"truncated": 1, "no_pair": 1})
    assert pairs(cut, good, bad) == ([("a2", "a3")], {"truncated": 1, "preference": 2})
    assert pairs(good, ("The answer", 0.0, "length")) == ([("a1", "a2")], {"preference": 2})


def test_ids_are_asked_for_where_the_form_is_ids(recording, make_policy) -> None:
    found = demonstrations(recording, make_policy(), Needs.TOKENS, min_reward=0.5)
    assert [one.attempt_id for one in found.examples] == ["a1"]
    assert reasons(found.ledger)["fidelity_too_low"] == 1


def test_words_are_asked_for_where_the_form_is_words(attempt_spans, make_policy) -> None:
    spans = attempt_spans("a1", 1, reward=1.0)
    for span in spans[1:]:
        del span.attributes["gen_ai.input.messages"]
    recording = read_recording(spans, with_words=True)
    assert reasons(demonstrations(recording, make_policy(), Needs.WORDS).ledger) == {"no_words": 1}
    assert reasons(demonstrations(recording, make_policy(), Needs.EITHER).ledger) == {"demonstrated": 1}


def test_pairs_are_the_best_and_the_worst_answer_to_one_prompt(recording, make_policy) -> None:
    found = preferences(recording, make_policy(), Needs.TOKENS)
    (pair,) = found.pairs
    assert (pair.chosen.attempt_id, pair.rejected.attempt_id) == ("a1", "a3")
    assert trl.preference_row(pair) == {
        "prompt": [{"role": "user", "content": "2+3?"}],
        "chosen": [{"role": "assistant", "content": "5"}],
        "rejected": [{"role": "assistant", "content": "6"}],
    }
    row = pair_row(pair)
    assert (row["prompt_ids"], row["chosen_ids"], row["rejected_ids"]) == ([1, 2], [3, 4], [5, 6, 7])
    assert reasons(found.ledger) == {
        "preference": 2,
        "no_pair": 1,
        "fidelity_too_low": 1,
        "no_reward": 1,
        "not_selected": 1,
    }


def test_prompts_that_differ_by_a_token_are_not_compared(attempt_spans, make_policy) -> None:
    spans = [*attempt_spans("a1", 1, reward=1.0), *attempt_spans("a2", 2, reward=0.0, prompt=(1, 9))]
    found = preferences(read_recording(spans, with_words=True), make_policy())
    assert found.pairs == ()
    assert reasons(found.ledger) == {"no_pair": 2}


@pytest.mark.parametrize("exact", [True, False])
def test_answers_are_compared_in_the_groups_that_the_policy_asks_for(exact, attempt_spans, make_policy) -> None:
    spans = [
        *attempt_spans("a1", 1, reward=1.0, exact=exact, group="g1"),
        *attempt_spans("a2", 2, reward=0.0, exact=exact, group="g2", response=(5,), answer="6"),
    ]
    recording = read_recording(spans, with_words=True)
    assert preferences(recording, make_policy(group_by="key")).pairs == ()
    for group_by in ("task", "prompt"):
        (pair,) = preferences(recording, make_policy(group_by=group_by)).pairs
        assert (pair.chosen.attempt_id, pair.rejected.attempt_id) == ("a1", "a2")
        assert pair.chosen.group_id == pair.rejected.group_id


def test_answers_that_earned_the_same_are_no_pair(attempt_spans, make_policy) -> None:
    spans = [*attempt_spans("a1", 1, reward=1.0), *attempt_spans("a2", 2, reward=1.0)]
    assert preferences(read_recording(spans, with_words=True), make_policy()).pairs == ()


def test_text_only_answers_are_compared_by_their_words(attempt_spans, make_policy) -> None:
    spans = [
        *attempt_spans("a1", 1, reward=1.0, exact=False),
        *attempt_spans("a2", 2, reward=0.0, exact=False, answer="6"),
    ]
    (pair,) = preferences(read_recording(spans, with_words=True), make_policy(), Needs.WORDS).pairs
    assert (pair.chosen.answer, pair.rejected.answer) == (
        {"role": "assistant", "content": "5"},
        {"role": "assistant", "content": "6"},
    )


def test_an_attempt_of_which_the_end_is_not_here_is_running(attempt_spans, make_policy) -> None:
    spans = attempt_spans("a1", 1, reward=1.0)[1:]
    recording = read_recording(spans, with_words=True)
    assert reasons(demonstrations(recording, make_policy()).ledger) == {"attempt_running": 1}


def test_spans_that_did_not_come_are_said(attempt_spans) -> None:
    spans = attempt_spans("a1", 1, reward=1.0)
    for number, span in enumerate(spans[:2], start=1):
        span.attributes.update({"lightning.sequence.id": "p", "lightning.sequence.number": number})
    spans[0].attributes["lightning.sequence.started"] = 5
    assert "3 spans of 1 attempts are not here" in " ".join(read_recording(spans).problems)


def test_where_only_words_are_written_the_same_words_in_other_tokens_are_no_pair(attempt_spans, make_policy) -> None:
    spans = [*attempt_spans("a1", 1, reward=1.0), *attempt_spans("a2", 2, reward=0.0, response=(3, 9, 9))]
    recording = read_recording(spans, with_words=True)
    assert preferences(recording, make_policy(), Needs.WORDS).pairs == ()
    assert len(preferences(recording, make_policy(), Needs.TOKENS).pairs) == 1


def test_an_answer_is_not_compared_with_the_same_answer(attempt_spans, make_policy) -> None:
    spans = [
        *attempt_spans("a1", 1, reward=1.0),
        *attempt_spans("a2", 2, reward=0.5, response=(5,), answer="6"),
        *attempt_spans("a3", 3, reward=0.0),
    ]
    found = preferences(read_recording(spans, with_words=True), make_policy())
    assert found.pairs == ()
    assert reasons(found.ledger) == {"no_pair": 3}


def test_a_prompt_with_an_image_is_neither_shown_nor_compared(attempt_spans, make_policy) -> None:
    spans = []
    for number, name in enumerate(("a1", "a2"), start=1):
        part = {"type": "uri", "modality": "image", "uri": f"http://x/{name}.png"}
        of_attempt = attempt_spans(name, number, reward=float(number), response=(number,))
        for span in of_attempt[1:]:
            span.attributes["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": [part]}])
        spans += of_attempt
    recording = read_recording(spans, with_words=True)
    for needs in Needs:
        assert reasons(demonstrations(recording, make_policy(), needs).ledger) == {"no_words": 2}
        assert reasons(preferences(recording, make_policy(), needs).ledger) == {"no_words": 2}
