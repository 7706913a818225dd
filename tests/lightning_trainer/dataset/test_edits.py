"""An edited answer is a demonstration in place of the answer, and the better one of a pair with it."""

import json
from dataclasses import replace

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.dataset.examples import Needs
from lightning_trainer.dataset.formats import trl
from lightning_trainer.dataset.reading import read_recording
from lightning_trainer.dataset.rows import pair_row
from lightning_trainer.dataset.selection import demonstrations, preferences
from lightning_trainer.samples.feedback.entries import Subject, feedback_span
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Fidelity


def edit(text: str, **subject):
    return feedback_span(Subject(**subject), source="editor", kind="person", name="feedback", correction=text)


@pytest.fixture
def spans(attempt_spans):
    return [
        *attempt_spans("a1", 1, reward=1.0),
        *attempt_spans("a2", 2, reward=0.0, response=(5, 6, 7), answer="6"),
        edit("4, no: 5.", response_id="response-a2"),
        edit("five", rollout_id="rollout-a2"),
    ]


def recorded(spans):
    return read_recording(spans, with_words=True)


def answers(found):
    """What is demonstrated, by attempt."""
    return {one.attempt_id: trl.conversational_row(one)["completion"][0]["content"] for one in found.examples}


def test_the_newest_edit_is_shown_in_place_of_the_answer(spans, make_policy):
    found = demonstrations(recorded(spans), make_policy(), min_reward=0.5)
    right, edited = found.examples
    assert (right.attempt_id, right.fidelity) == ("a1", Fidelity.EXACT)
    assert trl.conversational_row(edited)["completion"] == [{"role": "assistant", "content": "five"}]
    assert (edited.model, edited.response_ids, edited.fidelity) == ("edit", (), Fidelity.TEXT_ONLY)
    assert {row.reason: row.calls for row in found.ledger} == {"demonstrated": 1, "edited": 1}


def test_an_edit_of_an_answer_that_a_limit_of_tokens_cut_is_shown(attempt_spans, make_policy):
    spans = attempt_spans("a1", 1, reward=0.0, answer="The answer is", exact=False, finish="length")
    told = recorded([*spans, edit("five", rollout_id="rollout-a1")])
    assert answers(demonstrations(told, make_policy())) == {"a1": "five"}
    assert len(preferences(told, make_policy()).pairs) == 1


def test_the_edit_is_preferred_to_what_it_edits_whatever_that_earned(spans, make_policy):
    (pair,) = preferences(recorded(spans), make_policy()).pairs
    row = pair_row(pair)
    assert (row["chosen_answer"]["content"], row["rejected_answer"]["content"]) == ("five", "6")
    assert pair.rejected.response_ids == (), "the pair is one of words"
    assert pair.chosen.prompt == pair.rejected.prompt


def test_where_ids_are_asked_for_edits_are_left_out_and_said(spans, make_policy):
    found = demonstrations(recorded(spans), make_policy(), Needs.TOKENS)
    assert len(found.examples) == 2
    assert "1 edited answers have no token ids and are left out; leave --tokens out" in found.problems


def test_an_edit_of_something_else_changes_nothing(spans, make_policy):
    others = [*spans[:-2], edit("x", response_id="nobody", rollout_id="rollout-a2"), edit("y", trace_id="f" * 32)]
    for found in (demonstrations(recorded(others), make_policy()), preferences(recorded(others), make_policy())):
        assert "2 edited answers are left out: they match no recorded answer, or more than one" in found.problems
    assert answers(demonstrations(recorded(others), make_policy())) == {"a1": "5", "a2": "6"}
    taken = feedback_span(Subject(trace_id="f" * 32), source="editor", kind="person", name="feedback", taken_back=True)
    found = demonstrations(recorded([*others, taken]), make_policy())
    assert any("1 edited answers are left out: they match" in one for one in found.problems)


def within(spans, trace_id: str):
    """As made within a trace of the program's own."""
    outer = {semconv.OUTER_SPAN: f"{trace_id}-{'1' * 16}"}
    return [replace(one, attributes={**one.attributes, **outer}) for one in spans]


@pytest.mark.parametrize(
    ("about", "written"),
    [
        ({"trace_id": "c" * 32}, {"a1": "5", "a2": "five", "a3": "7"}),
        ({"trace_id": "c" * 32, "rollout_id": "rollout-a2"}, {"a1": "5", "a2": "five", "a3": "7"}),
        ({"trace_id": "d" * 32, "rollout_id": "rollout-a2"}, {"a1": "5", "a2": "five", "a3": "7"}),
        ({"trace_id": "e" * 32, "rollout_id": "rollout-a3"}, {"a1": "5", "a2": "6", "a3": "five"}),
        ({"trace_id": "e" * 32}, {"a1": "5", "a2": "6", "a3": "7"}),
        ({"trace_id": "c" * 32, "rollout_id": "rollout-a3"}, {"a1": "5", "a2": "6", "a3": "five"}),
    ],
    ids=["program's trace", "and rollout", "unknown trace and rollout", "shared trace and rollout", "shared", "other"],
)
def test_an_edit_may_name_the_trace_of_the_program_that_an_attempt_was_made_in(
    attempt_spans, make_policy, about, written
):
    """Before: Langfuse's corrections, which name Langfuse's trace, were written nowhere, and nothing said so."""
    spans = [
        *within(attempt_spans("a1", 1, reward=1.0), "e" * 32),
        *within(attempt_spans("a2", 2, reward=1.0, answer="6"), "c" * 32),
        *within(attempt_spans("a3", 3, reward=1.0, answer="7"), "e" * 32),
    ]
    found = demonstrations(recorded([*spans, edit("five", **about)]), make_policy())
    assert answers(found) == written
    said = "1 edited answers are left out: they match no recorded answer, or more than one"
    assert (said in found.problems) is ("five" not in written.values())


@pytest.mark.parametrize(("quarantine", "written"), [("0s", ["5", "five"]), ("10m", ["5", "6"])])
async def test_build_exports_what_has_left_quarantine(spans, tmp_path, monkeypatch, quarantine, written):
    monkeypatch.chdir(tmp_path)
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.append(spans)
    (tmp_path / "lightning.toml").write_text(f'[feedback]\nquarantine = "{quarantine}"\n')
    done = CliRunner().invoke(app, ["build", "--for", "sft", "--out", "sft.jsonl"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (tmp_path / "sft.jsonl").read_text().splitlines()]
    assert [row["answer"]["content"] for row in rows] == written
    assert ("2 edited answers do not count (yet)" in done.output) is (quarantine != "0s")


def test_an_edit_of_an_answer_that_cannot_be_used_does_not_replace_an_earlier_one(attempt_spans, make_policy):
    """What was edited is the last answer; the one before it was to another prompt."""
    first = attempt_spans("a1", 1, reward=1.0, answer="(calls the tool)")
    last = [
        replace(one, attributes={**one.attributes, semconv.RESPONSE_ID: "response-last"})
        for one in attempt_spans("a1", 2, reward=None, prompt=())[1:]
    ]
    found = demonstrations(recorded([*first, *last, edit("five", rollout_id="rollout-a1")]), make_policy())
    assert answers(found) == {"a1": "(calls the tool)"}
    assert any("1 edited answers are left out: what they edit is left out itself" in one for one in found.problems)


def test_an_edit_of_another_agents_last_answer_replaces_none_of_this_ones(attempt_spans, make_policy):
    planned = attempt_spans("a1", 1, reward=1.0, answer="First search, then write.", agent="planner")
    written = [
        replace(one, attributes={**one.attributes, semconv.RESPONSE_ID: "response-last"})
        for one in attempt_spans("a1", 2, reward=None, answer="The report", agent="writer")[1:]
    ]
    told = recorded([*planned, *written, edit("The better report", attempt_id="a1")])
    both = make_policy(agents=("planner", "writer"))
    found = demonstrations(told, both)
    assert [trl.conversational_row(one)["completion"][0]["content"] for one in found.examples] == [
        "First search, then write.",
        "The better report",
    ]
    found = demonstrations(told, both.only(("planner",)))
    assert answers(found) == {"a1": "First search, then write."}
    assert "1 edited answers are of other agents and are left out" in found.problems
    assert preferences(told, both.only(("planner",))).pairs == ()


def test_of_several_answers_with_one_response_id_the_named_attempts_is_edited(attempt_spans, make_policy):
    def repeated(spans):
        """As of a server that gives all its responses one id."""
        return [
            replace(one, attributes={**one.attributes, semconv.RESPONSE_ID: "same"})
            if semconv.RESPONSE_ID in one.attributes
            else one
            for one in spans
        ]

    spans = [*repeated(attempt_spans("a1", 1, reward=1.0)), *repeated(attempt_spans("a2", 2, reward=1.0, answer="6"))]
    named = demonstrations(recorded([*spans, edit("five", response_id="same", attempt_id="a1")]), make_policy())
    assert answers(named) == {"a1": "five", "a2": "6"}
    unnamed = demonstrations(recorded([*spans, edit("five", response_id="same")]), make_policy())
    assert answers(unnamed) == {"a1": "5", "a2": "6"}


@pytest.mark.parametrize("about", [{"response_id": "response-a2"}, {"rollout_id": "rollout-a2"}])
def test_an_edit_that_its_source_took_back_is_none(attempt_spans, make_policy, about):
    def said(source, **told):
        return feedback_span(Subject(**about), source=source, kind="person", name="feedback", **told)

    spans = [
        *attempt_spans("a2", 2, reward=0.0, answer="6"),
        said("ada", correction="five", given_ns=1),
        said("bob", correction="cinq", given_ns=2),
    ]
    for back, answer in (("bob", "five"), ("ada", "cinq"), ("eve", "cinq")):
        told = [*spans, said(back, taken_back=True, given_ns=3)]
        assert answers(demonstrations(recorded(told), make_policy())) == {"a2": answer}
    taken = [said(source, taken_back=True, given_ns=3) for source in ("ada", "bob")]
    assert answers(demonstrations(recorded([*spans, *taken]), make_policy())) == {"a2": "6"}
    again = said("ada", correction="5.", given_ns=4)
    assert answers(demonstrations(recorded([*spans, *taken, again]), make_policy())) == {"a2": "5."}


def test_a_score_that_is_deleted_takes_back_its_own_words_only(attempt_spans, make_policy):
    """Before: deleting Langfuse's rating left out the correction that the same person had given under the same name."""

    def score(score_trace, given_ns, **told):
        about = Subject(rollout_id="rollout-a2")
        span = feedback_span(about, source="ada", kind="person", name="quality", given_ns=given_ns, **told)
        return replace(span, trace_id=score_trace)

    rating, correction = score("a" * 32, 1, value=0.0), score("b" * 32, 2, correction="five")
    spans = [*attempt_spans("a2", 2, reward=0.0, answer="6"), rating, correction]
    for score_trace, answer in (("a" * 32, "five"), ("b" * 32, "6")):
        told = [*spans, score(score_trace, 3, taken_back=True)]
        assert answers(demonstrations(recorded(told), make_policy())) == {"a2": answer}
