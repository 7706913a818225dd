"""Whoever sent it, a text is stored redacted; names, ids, roles, numbers and, unless asked, tokens as they were."""

import json
from dataclasses import replace
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.redaction.rules import redactor
from lightning_instrumentation.spans.packing import pack_token_ids
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanProto

from lightning_trainer.config import DaemonConfig
from lightning_trainer.ingest.dialects.tokens import FOREIGN_NAMES
from lightning_trainer.ingest.http.rewards import RewardBody, reward_span
from lightning_trainer.ingest.http.rollouts import SCOPE as ROLLOUTS
from lightning_trainer.ingest.redacting import RedactingSink, SpanRedactor
from lightning_trainer.otlp.span_codec import attributes_to_proto, received_span
from lightning_trainer.types import AttributeValue, Span, SpanEvent, SpanStatus

SECRET = "sk-" + "a1B2" * 12
RECORD = Span(
    "1" * 32,
    "2" * 16,
    None,
    "gateway chat",
    1,
    2,
    {
        semconv.AGENT_NAME: "ann@example.com",
        semconv.INPUT_MESSAGES: json.dumps(
            [{"role": "user", "parts": [{"content": f"\n{SECRET} of ann@example.com"}]}]
        ),
        semconv.PROMPT_TOKEN_IDS: pack_token_ids([1, 2]),
    },
    status_message=f"no {SECRET}",
    scope=semconv.GATEWAY_SCOPE,
)


class Kept:
    def __init__(self) -> None:
        self.spans: list[Span] = []

    async def append(self, spans) -> int:
        self.spans.extend(spans)
        return len(spans)


async def test_texts_are_redacted_and_ids_and_names_stay():
    kept = Kept()
    assert await RedactingSink(kept, SpanRedactor(redactor(["emails"]))).append([RECORD]) == 1
    (stored,) = kept.spans
    messages = json.dumps([{"role": "user", "parts": [{"content": "\n[redacted key] of [redacted e-mail]"}]}])
    assert json.loads(str(stored.attributes[semconv.INPUT_MESSAGES])) == json.loads(messages)
    assert stored.status_message == "no [redacted key]"
    unchanged = (semconv.AGENT_NAME, semconv.PROMPT_TOKEN_IDS)
    assert [stored.attributes[key] for key in unchanged] == [RECORD.attributes[key] for key in unchanged]


async def test_what_cannot_be_redacted_is_left_out_and_the_record_is_kept():
    kept = Kept()
    fails: Any = lambda text: 1 / 0  # noqa: E731
    redacted = SpanRedactor(redactor([fails]))
    sink = RedactingSink(kept, redacted)
    await sink.append([RECORD])
    assert semconv.INPUT_MESSAGES not in kept.spans[0].attributes
    assert (redacted.left_out, kept.spans[0].status_message) == (2, "")
    assert kept.spans[0].attributes[semconv.PROMPT_TOKEN_IDS]


async def test_nothing_to_redact_changes_nothing():
    kept = Kept()
    plain = replace(RECORD, attributes={semconv.INPUT_MESSAGES: "[]"}, status_message="")
    await RedactingSink(kept, SpanRedactor(redactor(()))).append([plain])
    assert kept.spans == [plain]


def test_the_configuration_takes_rules_and_names_a_wrong_one():
    assert DaemonConfig(redact=("emails", "regex:case \\d+")).redact == ("emails", "regex:case \\d+")
    with pytest.raises(ValueError, match="redact has 'email'"):
        DaemonConfig(redact=("email",))


FOREIGN: dict[str, AttributeValue] = {
    "llm.input_messages.0.message.role": "user",
    "llm.input_messages.0.message.content": f"use {SECRET}",
    "llm.input_messages.0.message.tool_calls.0.tool_call.id": "call_user",
    "input.value": json.dumps({"messages": [{"role": "user", "content": f"use {SECRET}"}], "n": 3}),
    "tag.tags": ("user", f"of {SECRET}"),
    "url.full": f"https://user:{SECRET}@api.example.com/v1",
    "llm.token_count.prompt": 3,
}


async def test_what_another_tracer_sent_is_redacted_in_every_text_and_stays_a_call():
    kept = Kept()
    event = SpanEvent("exception", 5, {"exception.message": f"{SECRET} was refused", "exception.type": "user"})
    span = Span("1" * 32, "3" * 16, None, "ChatCompletion", 1, 2, FOREIGN, (event,), SpanStatus.ERROR, f"no {SECRET}")
    await RedactingSink(kept, SpanRedactor(redactor(["regex:user"]))).append([span] * 20)
    for stored in kept.spans:
        assert SECRET not in repr(stored)
        assert stored.attributes["llm.input_messages.0.message.role"] == "user"
        assert stored.attributes["llm.input_messages.0.message.tool_calls.0.tool_call.id"] == "call_user"
        assert stored.attributes["llm.token_count.prompt"] == 3
        assert json.loads(str(stored.attributes["input.value"]))["messages"][0]["role"] == "user"
        assert stored.attributes["tag.tags"] == ("[redacted]", "of [redacted key]")
        assert stored.events[0].attributes == {
            "exception.message": "[redacted key] was refused",
            "exception.type": "user",
        }


async def test_a_resource_is_redacted_once_and_the_bytes_of_its_spans_stay():
    kept = Kept()
    resource: dict[str, AttributeValue] = {
        "process.command_args": ("agent.py", "--key", SECRET),
        "service.name": "user",
        "agentlightning.rollout_id": "user-1",
        "process.pid": 7,
    }
    link = SpanProto.Link(trace_id=b"1" * 16, attributes=attributes_to_proto({"of": SECRET}))
    protos = [SpanProto(trace_id=b"1" * 16, span_id=bytes([number]) * 8, links=[link]) for number in range(1, 10)]
    spans = [received_span(proto, scope="ai", resource=resource) for proto in protos]
    await RedactingSink(kept, SpanRedactor(redactor(["regex:user"]), drop_tokens=True)).append([*spans, RECORD])
    *stored, _ = kept.spans
    assert {id(span.resource) for span in stored} == {id(stored[0].resource)}
    assert stored[0].resource == {**resource, "process.command_args": ("agent.py", "--key", "[redacted key]")}
    assert [span.received for span in stored] == [span.received for span in spans]
    assert all(span.received and SECRET.encode() not in span.received for span in stored)


async def test_a_span_without_a_secret_is_stored_from_the_bytes_it_came_in():
    kept = Kept()
    plain = replace(RECORD, attributes={semconv.INPUT_MESSAGES: "[]"}, status_message="")
    await RedactingSink(kept, SpanRedactor(redactor(()))).append([plain])
    assert kept.spans[0] is plain


@pytest.mark.parametrize("drop", [False, True])
async def test_tokens_that_spell_a_secret_are_stored_unless_they_are_to_be_dropped(drop):
    kept = Kept()
    own = {semconv.response_token_ids(0): b"1", semconv.response_logprobs(0): b"2"}
    attributes = {**RECORD.attributes, **own, **dict.fromkeys(FOREIGN_NAMES, (1, 2))}
    harmless = replace(RECORD, attributes={**attributes, semconv.INPUT_MESSAGES: "[]"}, status_message="")
    sink = RedactingSink(kept, SpanRedactor(redactor(()), drop_tokens=drop))
    await sink.append([replace(RECORD, attributes=attributes), harmless])
    names = {semconv.PROMPT_TOKEN_IDS, *own, *FOREIGN_NAMES}
    assert names & set(kept.spans[0].attributes) == (set() if drop else names)
    assert names <= set(kept.spans[1].attributes)


async def test_a_rewards_explanation_and_an_attempts_error_are_texts():
    kept = Kept()
    given = RewardBody(value=1.0, explanation=f"it leaked {SECRET}")
    failed = Span("1" * 32, "4" * 16, None, "rollout t", 1, 2, {}, status_message=f"no {SECRET}", scope=ROLLOUTS)
    await RedactingSink(kept, SpanRedactor(redactor(()))).append(
        [reward_span({semconv.ROLLOUT_ID: "r"}, given), failed]
    )
    assert SECRET not in repr(kept.spans)
    assert kept.spans[0].events[0].attributes[semconv.EVALUATION_EXPLANATION] == "it leaked [redacted key]"
