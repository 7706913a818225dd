"""What must not be recorded is neither sent nor on disk, whichever part of a span it was in."""

import json
import re

import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import runtime, semconv
from lightning_instrumentation.spans import lifecycle
from lightning_instrumentation.spans.packing import unpack_token_ids

SECRET = "sk-" + "a1B2" * 12
ADDRESS = "ann@example.com"


@pytest.fixture
def begin(receiver, model, tmp_path):
    """Start the client anew with these options."""

    def begin(**options) -> None:
        lt.shutdown(0.0)
        lt.init(receiver.url, spool_dir=tmp_path, trusted_hosts=[f"localhost:{model.port}"], **options)

    yield begin
    lt.shutdown(1.0)


def say_it_everywhere(model, said: str) -> None:
    """Text in every place that a span has for it."""
    client = openai.OpenAI(base_url=f"http://localhost:{model.port}/v1", api_key="no-key", max_retries=0)

    @lt.agent("speaker")
    def fail() -> None:
        raise ValueError(f"could not do it with {said}")

    with lt.rollout("t", input={"question": said}) as rollout:
        client.chat.completions.create(
            model="m",
            messages=[{"role": "system", "content": f"use {said}"}, {"role": "user", "content": said}],
        )
        with pytest.raises(ValueError, match="could not"):
            fail()
        started = runtime.runtime()
        assert started is not None
        attributes = {
            semconv.OPERATION: semconv.EXECUTE_TOOL,
            semconv.TOOL_CALL_ARGUMENTS: json.dumps({"key": said}),
            semconv.TOOL_DEFINITIONS: json.dumps([{"description": said}]),
        }
        tool = lifecycle.begin(started.tracer, "execute_tool t", attributes)
        assert tool is not None
        tool.set_attribute(semconv.TOOL_CALL_RESULT, f"got {said}")
        lifecycle.mark_failed(tool, "tool_error", f"no {said}")
        lifecycle.end(tool)
        rollout.reward(1.0, explanation=f"it said {said}")


def everything(receiver) -> str:
    assert lt.flush(10)
    return "\n".join(repr((s.name, s.attributes, s.events, s.error)) for s in receiver.spans())


def test_keys_are_taken_out_without_being_asked(begin, receiver, model):
    begin()
    say_it_everywhere(model, f"{SECRET} and {ADDRESS}")
    said = everything(receiver)
    assert SECRET not in said
    assert said.count("[redacted key]") >= 9
    assert ADDRESS in said
    (chat,) = receiver.spans("chat")
    system, _ = json.loads(chat.attributes[semconv.INPUT_MESSAGES])
    assert system["parts"][0]["content"] == f"use [redacted key] and {ADDRESS}"


def test_addresses_and_patterns_are_taken_out_when_asked(begin, receiver, model):
    begin(redact=["emails", re.compile(r"case \d+")])
    say_it_everywhere(model, f"case 4711 of {ADDRESS} with {SECRET}")
    said = everything(receiver)
    assert not any(secret in said for secret in (SECRET, ADDRESS, "4711"))


def test_what_is_taken_out_is_not_in_the_spool_either(begin, receiver, model, tmp_path):
    receiver.stop()
    begin(redact="emails")
    say_it_everywhere(model, f"{SECRET} and {ADDRESS}")
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"redacted key" in content for content in files)
    assert not any(SECRET.encode() in content or ADDRESS.encode() in content for content in files)
    receiver.start()


def test_what_a_rule_fails_on_is_left_out_and_counted_and_the_rest_arrives(begin, receiver, model, caplog):
    def fails(text: str) -> str:
        raise RuntimeError(text)

    begin(redact=fails)
    before = lt.stats().failed.get("redaction", 0)
    say_it_everywhere(model, "private words")
    assert "private words" not in everything(receiver)
    assert len(receiver.spans()) == 5
    (chat,) = receiver.spans("chat")
    assert not semconv.CONTENT_KEYS & set(chat.attributes)
    assert unpack_token_ids(chat.attributes[semconv.PROMPT_TOKEN_IDS])
    assert lt.stats().failed["redaction"] >= before + 9
    assert "private" not in caplog.text


@pytest.mark.parametrize("by_environment", [False, True])
def test_without_content_no_text_is_recorded_and_token_ids_are(begin, receiver, model, monkeypatch, by_environment):
    if by_environment:
        monkeypatch.setenv("LIGHTNING_CAPTURE_CONTENT", "0")
        begin()
    else:
        begin(capture_content=False)
    say_it_everywhere(model, "private words")
    assert "private words" not in everything(receiver)
    (chat,) = receiver.spans("chat")
    assert unpack_token_ids(chat.attributes[semconv.PROMPT_TOKEN_IDS])
    (failed,) = receiver.spans("invoke_agent")
    assert failed.attributes[semconv.ERROR_TYPE] == "ValueError"
    assert failed.error == ""


def test_names_and_ids_are_never_touched(begin, receiver):
    begin(redact=["emails", lambda text: "x"])
    with lt.rollout(ADDRESS, rollout_id=ADDRESS):
        lt.agent(ADDRESS)(lambda: None)()
    assert lt.flush(10)
    (agent,) = receiver.spans("invoke_agent")
    assert agent.attributes[semconv.ROLLOUT_ID] == agent.attributes[semconv.AGENT_NAME] == ADDRESS


def test_rules_come_from_the_environment_too(begin, receiver, model, monkeypatch):
    monkeypatch.setenv("LIGHTNING_REDACT", "emails")
    begin()
    say_it_everywhere(model, ADDRESS)
    assert ADDRESS not in everything(receiver)
    monkeypatch.setenv("LIGHTNING_REDACT", "e-mails")
    lt.shutdown(0.0)
    with pytest.raises(lt.ConfigurationError, match="e-mails"):
        lt.init(receiver.url)
    monkeypatch.delenv("LIGHTNING_REDACT")
