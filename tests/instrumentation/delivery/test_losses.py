"""A process tells the daemon what it could not capture, once for each change, with its deliveries."""

import json
import os
import time

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.delivery import sender
from lightning_instrumentation.delivery.loss_reports import losses
from lightning_instrumentation.failures import failures


@pytest.fixture(autouse=True)
def begun_anew():
    failures.in_child()
    losses.in_child()


def told(recording) -> list[dict[str, int]]:
    return [json.loads(span.attributes[semconv.LOSSES]) for span in recording.spans(semconv.LOSSES_SPAN)]


def test_nothing_is_said_where_nothing_is_lost(recording):
    with lt.rollout("t"):
        pass
    assert told(recording) == []


def test_counts_come_with_the_next_delivery_and_again_when_they_change(recording):
    failures.count("request-over-limit")
    assert told(recording) == [{"request-over-limit": 1}]
    assert len(told(recording)) == 1
    failures.count("request-over-limit")
    failures.count("redaction")
    assert told(recording)[1:] == [{"request-over-limit": 2, "redaction": 1}]
    assert len({span.attributes[semconv.PROCESS_ID] for span in recording.spans(semconv.LOSSES_SPAN)}) == 1


def test_it_is_nobodys_span(recording):
    with lt.rollout("t"):
        failures.count("redaction")
        lt.flush()
    (span,) = recording.spans(semconv.LOSSES_SPAN)
    assert semconv.ATTEMPT_ID not in span.attributes
    assert span.parent_span_id == ""


def test_a_program_that_never_flushes_says_it_too(receiver, tmp_path, monkeypatch):
    monkeypatch.setattr(sender, "_IDLE_EVERY_S", 0.05)
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    with lt.rollout("t"):
        failures.count("redaction")
    receiver.wait_for(1, prefix=semconv.LOSSES_SPAN)
    lt.shutdown(1.0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_speaks_for_itself(recording):
    failures.count("redaction")
    assert told(recording) == [{"redaction": 1}]
    child = os.fork()
    if child == 0:
        failures.count("spool-full")
        os._exit(0 if lt.flush(10.0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    time.sleep(0.05)
    assert told(recording) == [{"redaction": 1}, {"spool-full": 1}]
