"""A span keeps to OpenTelemetry's interface: what was said before its end is in it, what comes later is not."""

from lightning_instrumentation import semconv
from lightning_instrumentation.recording import RecordingSpan
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode


def begun(ended=lambda span: None) -> RecordingSpan:
    return RecordingSpan("n", SpanContext(1, 2, False), None, SpanKind.CLIENT, {"a": 1}, (), 1, ended)


def test_nothing_changes_after_the_end_and_it_ends_once():
    ended = []
    span = begun(ended.append)
    span.end(5)
    span.set_attribute("b", 1)
    span.set_attributes({"c": 1})
    span.add_event("e")
    span.add_link(SpanContext(3, 4, False))
    span.update_name("m")
    span.set_status(StatusCode.ERROR, "no")
    span.end(9)
    assert ended == [span]
    assert (span.name, span.attributes, span.events, span.links, span.end_ns) == ("n", {"a": 1}, [], [], 5)
    assert span.status is StatusCode.UNSET
    assert not span.is_recording()


def test_a_status_of_ok_is_final_and_unset_changes_nothing():
    span = begun()
    span.set_status(Status(StatusCode.ERROR, "no"))
    span.set_status(StatusCode.UNSET)
    assert (span.status, span.status_message) == (StatusCode.ERROR, "no")
    span.set_status(StatusCode.OK)
    span.set_status(StatusCode.ERROR, "no")
    assert (span.status, span.status_message) == (StatusCode.OK, "")


def test_an_exception_is_an_event():
    span = begun()
    span.record_exception(ValueError("no"), {"more": 1})
    (event,) = span.events
    assert event.name == "exception"
    assert event.attributes["exception.type"] == "ValueError"
    assert event.attributes[semconv.EXCEPTION_MESSAGE] == "no"
    assert event.attributes["more"] == 1
