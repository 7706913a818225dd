"""``lt.feedback``: an evaluation that names its source, sent as spans are; a mistake is said, never raised."""

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.samples.feedback.entries import entries_of
from lightning_trainer.types import Span, SpanEvent


def told(recording, number=-1):
    spans = [span for span in recording.spans() if span.name.startswith("evaluate ")]
    found = spans[number]
    ((name, attributes),) = found.events
    event = SpanEvent(name, 1, attributes)
    span = Span(found.trace_id, found.span_id, found.parent_span_id, found.name, 1, 1, found.attributes, (event,))
    (entry,) = entries_of(span)
    return entry, span


def test_a_thumb_is_of_the_response_that_it_names(recording):
    lt.feedback(source="user-17", thumb="up", response_id="resp-1", comment="clear")
    entry, span = told(recording)
    assert (entry.source, entry.kind, entry.name, entry.value) == ("user-17", "person", "feedback", 1.0)
    assert (entry.subject.response_id, entry.comment) == ("resp-1", "clear")
    assert semconv.ROLLOUT_ID not in span.attributes


def test_inside_of_a_rollout_it_is_of_that_and_named_it_is_of_another(recording):
    with lt.rollout("task"):
        lt.feedback(source="u", score=4, scale=(0, 5))
        lt.feedback(source="u", thumb="down", rollout_id="another")
    inside, _ = told(recording, 0)
    other, span = told(recording, 1)
    assert inside.subject.rollout_id is not None
    assert inside.subject.attempt_id is not None
    assert inside.value == pytest.approx(0.8)
    assert (other.subject.rollout_id, other.subject.attempt_id, other.value) == ("another", None, 0.0)
    assert not span.parent_span_id


def test_an_edit_and_what_is_taken_back(recording):
    lt.feedback(source="u", edit="Better. api_key=sk-proj-9fK2xQ7vLm3TzR8wYb1NcJ5hGd4PsA6eU0iO", trace_id="a" * 32)
    lt.feedback(source="crm", kind="system", thumb="none", trace_id="a" * 32)
    edited, _ = told(recording, 0)
    assert edited.correction is not None
    assert edited.correction.startswith("Better.")
    assert "9fK2xQ7v" not in edited.correction, "an edit is text, and keys are taken out of it"
    back, _ = told(recording, 1)
    assert (back.taken_back, back.value, back.kind) == (True, None, "system")


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"thumb": "up", "response_id": None}, "it is about nothing: call it in a rollout"),
        ({}, "it says nothing: give a thumb, a score or an edit"),
        ({"edit": ""}, "it says nothing: give a thumb, a score or an edit"),
        ({"thumb": "sideways"}, "thumb is 'sideways'; it is 'up', 'down' or 'none'"),
        ({"thumb": "up", "score": 1}, "it has a thumb and a score under one name"),
        ({"score": 7}, "score 7 is not on the scale from 0.0 to 1.0"),
        ({"score": float("nan")}, "score nan is not on the scale"),
        ({"thumb": "up", "kind": "robot"}, "kind is 'robot'"),
        ({"thumb": "up", "source": ""}, "source and name are texts of 1 to 256 characters"),
        ({"edit": "x" * 70_000}, "the edit has 70000 characters; at most 65536 are kept"),
    ],
)
def test_a_mistake_is_said_and_not_raised(recording, caplog, wrong, sentence):
    lt.feedback(**{"source": "u", "response_id": "r", **wrong})
    assert sentence in caplog.text
    assert [span for span in recording.spans() if span.name.startswith("evaluate ")] == []
    lt.feedback(source="u", score="many", response_id="r")  # type: ignore[arg-type]
