"""What passes through the gateway is stored redacted, with its tokens as they were."""

import json
from dataclasses import replace
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.redaction.rules import redactor
from lightning_instrumentation.telemetry.packing import pack_token_ids

from lightning_trainer.config import DaemonConfig
from lightning_trainer.gateway.redacting import RedactingSink
from lightning_trainer.types import Span

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
    assert await RedactingSink(kept, redactor(["emails"])).append([RECORD]) == 1
    (stored,) = kept.spans
    messages = json.dumps([{"role": "user", "parts": [{"content": "\n[redacted key] of [redacted e-mail]"}]}])
    assert json.loads(str(stored.attributes[semconv.INPUT_MESSAGES])) == json.loads(messages)
    assert stored.status_message == "no [redacted key]"
    unchanged = (semconv.AGENT_NAME, semconv.PROMPT_TOKEN_IDS)
    assert [stored.attributes[key] for key in unchanged] == [RECORD.attributes[key] for key in unchanged]


async def test_what_cannot_be_redacted_is_left_out_and_the_record_is_kept():
    kept = Kept()
    fails: Any = lambda text: 1 / 0  # noqa: E731
    sink = RedactingSink(kept, redactor([fails]))
    await sink.append([RECORD])
    assert semconv.INPUT_MESSAGES not in kept.spans[0].attributes
    assert (sink.left_out, kept.spans[0].status_message) == (2, "")
    assert kept.spans[0].attributes[semconv.PROMPT_TOKEN_IDS]


async def test_nothing_to_redact_changes_nothing():
    kept = Kept()
    plain = replace(RECORD, attributes={semconv.INPUT_MESSAGES: "[]"}, status_message="")
    await RedactingSink(kept, redactor(())).append([plain])
    assert kept.spans == [plain]


def test_the_configuration_takes_rules_and_names_a_wrong_one():
    assert DaemonConfig(redact=("emails", "regex:case \\d+")).redact == ("emails", "regex:case \\d+")
    with pytest.raises(ValueError, match="redact has 'email'"):
        DaemonConfig(redact=("email",))
