"""``lt.init`` once more: what it names takes effect as far as it still can, and what cannot is said."""

import logging
import re
from pathlib import Path

import httpx
import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import runtime, semconv
from lightning_instrumentation.settings import Settings


def settings() -> Settings:
    started = runtime.running()
    assert started is not None
    return started.settings


@lt.agent("worker")
def work() -> None:
    raise ValueError("ann@example.com")


def worked() -> None:
    with pytest.raises(ValueError, match="ann"):
        work()


@pytest.fixture
def warned(caplog):
    with caplog.at_level(logging.WARNING, logger="lightning_instrumentation"):
        yield caplog


def test_before_anything_is_recorded_all_that_is_named_takes_effect(receiver, tmp_path, warned) -> None:
    lt.shutdown(0.0)
    lt.init("http://127.0.0.1:1", token="none", spool_dir=tmp_path, trusted_hosts=["a:1"])
    lt.init(receiver.url, redact="emails", agent="b", trusted_hosts=["b:1"])
    named = settings()
    assert (named.endpoint, named.redact, named.agent, named.trusted_hosts) == (
        receiver.url,
        ("emails",),
        "b",
        ("b:1",),
    )
    assert (named.token, named.spool_dir) == ("none", tmp_path)  # not named, so as they were
    worked()
    lt.shutdown()
    (span,) = receiver.spans()
    assert span.error == "[redacted e-mail]"
    assert warned.records == []


def test_before_anything_is_recorded_the_environment_is_read_again(monkeypatch, tmp_path, warned) -> None:
    # As of a program that is run by `lightning-trainer run`, and then loads its settings from a file.
    lt.shutdown(0.0)
    monkeypatch.delenv("LIGHTNING_TOKEN", raising=False)
    lt.init("http://127.0.0.1:1", spool_dir=tmp_path, capture_content=False)
    monkeypatch.setenv("LIGHTNING_TOKEN", "of-the-file")
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "http://127.0.0.1:2")
    monkeypatch.setenv("LIGHTNING_AGENT", "of-the-file")
    monkeypatch.setenv("LIGHTNING_CAPTURE_CONTENT", "1")
    lt.init()
    read = settings()
    assert (read.token, read.agent) == ("of-the-file", "of-the-file")
    assert (read.endpoint, read.spool_dir, read.capture_content) == ("http://127.0.0.1:1", tmp_path, False)  # as named
    lt.shutdown(0.0)
    lt.init(spool_dir=tmp_path)
    assert (settings().endpoint, settings().capture_content) == ("http://127.0.0.1:2", True)  # starts afresh
    lt.shutdown(0.0)


def test_later_what_is_recorded_changes_from_there_on(recording, warned) -> None:
    worked()
    lt.init(redact=["emails"], agent="b", trusted_hosts=["b:1"], max_body_bytes=9, route=False)
    worked()
    lt.init(capture_content=False)
    worked()
    assert [span.error for span in recording.spans("invoke_agent")] == ["ann@example.com", "[redacted e-mail]", ""]
    named = settings()
    assert (named.agent, named.trusted_hosts, named.max_body_bytes, named.route) == ("b", ("b:1",), 9, False)
    assert lt.stats().created == 3
    assert warned.records == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("endpoint", "http://127.0.0.1:1"),
        ("token", "the-secret"),
        ("ca_file", "authority.pem"),
        ("spool_dir", "elsewhere"),
        ("spool_limit_bytes", 1000),
        ("spool_full", "block"),
        ("spool_block_s", 1.5),
    ],
)
def test_later_where_spans_go_stays_and_that_is_said(recording, warned, name: str, value) -> None:
    worked()
    before = getattr(settings(), name)
    lt.init(**{name: value}, agent="b")
    (said,) = warned.records
    assert f"lt.init({name}=...) comes too late for that" in said.getMessage()
    assert "call lt.shutdown() first" in said.getMessage()
    assert "the-secret" not in warned.text
    assert (getattr(settings(), name), settings().agent) == (before, "b")
    worked()
    assert len(recording.spans("invoke_agent")) == 2


def test_the_same_again_changes_nothing(recording, warned, tmp_path: Path) -> None:
    worked()
    started = runtime.running()
    lt.init()
    lt.init(recording.receiver.url, spool_dir=tmp_path, capture_content=True, redact=())
    assert runtime.running() is started
    with pytest.raises(lt.ConfigurationError, match=re.escape("(?=")):
        lt.init(redact="regex:(?=")
    assert runtime.running() is started
    assert warned.records == []
    assert semconv.AGENT_NAME in recording.span("invoke_agent").attributes


def test_after_shutdown_a_model_call_alone_records_nothing(receiver, model, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LIGHTNING_ENDPOINT", receiver.url)
    lt.init(receiver.url, spool_dir=tmp_path, capture_content=False, redact=["emails"], route=False)
    lt.shutdown()
    failed = lt.stats().failed
    body = {"model": "m", "messages": [{"role": "user", "content": "private words"}]}
    assert httpx.post(f"{model.url}/v1/chat/completions", json=body).status_code == 200
    assert runtime.running() is None
    assert lt.stats().failed == failed  # nor is it said to be too long
    worked()  # a decorator starts it again: where the environment says, and as private as before
    kept = settings()
    assert (kept.endpoint, kept.capture_content, kept.redact, kept.route) == (receiver.url, False, ("emails",), False)
    lt.shutdown()
    assert {span.name for span in receiver.spans()} == {"invoke_agent worker"}
    lt.init(receiver.url, spool_dir=tmp_path)
    named = settings()
    assert (named.capture_content, named.redact, named.route) == (True, (), True)  # starts afresh
    lt.shutdown(0.0)
    worked()
    assert settings().capture_content is True
    lt.shutdown(0.0)
