"""An edited answer is a demonstration in place of the answer, and the better one of a pair with it."""

import json

import pytest
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


def test_the_newest_edit_is_shown_in_place_of_the_answer(spans, make_policy):
    found = demonstrations(recorded(spans), make_policy(), min_reward=0.5)
    right, edited = found.examples
    assert (right.attempt_id, right.fidelity) == ("a1", Fidelity.EXACT)
    assert trl.conversational_row(edited)["completion"] == [{"role": "assistant", "content": "five"}]
    assert (edited.model, edited.response_ids, edited.fidelity) == ("edit", (), Fidelity.TEXT_ONLY)
    assert {row.reason: row.calls for row in found.ledger} == {"demonstrated": 1, "edited": 1}


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
    others = [*spans[:-2], edit("x", response_id="nobody"), edit("y", trace_id="f" * 32)]
    assert len(demonstrations(recorded(others), make_policy()).examples) == 2


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
