"""What processes say that they could not capture is added up once, whatever is said twice or makes no sense."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from lightning_instrumentation import semconv

from lightning_trainer.agents.uncaptured import count_losses, in_words
from lightning_trainer.types import Span

SPAN = Span("0" * 32, "0" * 16, None, semconv.LOSSES_SPAN, 0, 0, {})


def said(process: str, counts: object, program: str = "agent.py") -> Span:
    attributes = {semconv.PROCESS_ID: process, semconv.LOSSES: json.dumps(counts)}
    return replace(SPAN, attributes=attributes, resource={"service.name": program})


def test_totals_of_a_process_are_not_added_to_each_other_and_those_of_processes_are():
    spans = [
        said("a", {"spool-full": 2}),
        said("a", {"spool-full": 5, "redaction": 1}),
        said("b", {"spool-full": 10}),
        said("c", {"redaction": 3}, program="other.py"),
    ]
    assert count_losses(spans) == [
        {"program": "agent.py", "processes": 2, "reasons": {"spool-full": 15, "redaction": 1}},
        {"program": "other.py", "processes": 1, "reasons": {"redaction": 3}},
    ]


@given(st.permutations([said("a", {"x": n}) for n in (1, 2, 3)] * 2))
def test_order_and_repetition_change_nothing(spans):
    assert count_losses(spans)[0]["reasons"] == {"x": 3}


def test_what_makes_no_sense_counts_for_nothing():
    nonsense: list[Span] = [said("a", one) for one in (None, 3, ["x"], {"x": "y"}, {"x": -1}, {"x": 1.5})]
    assert count_losses([*nonsense, SPAN, replace(SPAN, attributes={semconv.LOSSES: "{"})]) == []


def test_a_reason_is_put_in_words_and_an_unknown_one_stays():
    assert in_words("not-routed:/embeddings").startswith("calls of claimed agents")
    assert in_words("not-routed:/embeddings").endswith("(not-routed:/embeddings)")
    assert in_words("newer") == "newer"
