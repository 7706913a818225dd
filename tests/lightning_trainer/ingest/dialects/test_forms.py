"""Forms of spans that no recording here has, written as their instrumentations write them."""

import json

import pytest

from lightning_trainer.ingest.dialects.registry import dialect_of, with_response_id
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.types import Span

OPENINFERENCE = {"openinference.span.kind": "LLM", "output.mime_type": "application/json"}
GENAI = {"gen_ai.operation.name": "chat", "gen_ai.response.id": "r"}


def spanned(attributes: dict, **more) -> Span:
    return Span("1" * 32, "2" * 16, None, "call", 1, 2, attributes, **more)


def answered(text: str, **more: str) -> dict:
    return {"role": "assistant", "parts": [{"type": "text", "content": text}], **more}


@pytest.mark.parametrize(
    ("attributes", "reasons"),
    [
        (OPENINFERENCE | {"output.value": '{"id": "msg_1", "type": "message", "stop_reason": "max_tokens"}'}, [True]),
        (
            OPENINFERENCE
            | {
                "output.value": '{"id": "resp_1", "object": "response", "status": "incomplete", '
                '"incomplete_details": {"reason": "max_output_tokens"}}'
            },
            [True],
        ),
        (
            OPENINFERENCE
            | {
                "output.value": '{"generations": [[{"message": {"kwargs": '
                '{"response_metadata": {"id": "msg_1", "stop_reason": "max_tokens"}}}}]]}'
            },
            [True],
        ),
        (GENAI | {"gen_ai.output.messages": json.dumps([answered("a", finish_reason="length")])}, [True]),
        (
            GENAI
            | {
                "gen_ai.output.messages": json.dumps(
                    [answered("a", finish_reason="stop"), answered("b", finish_reason="length")]
                )
            },
            [False, True],
        ),
        (GENAI | {"gen_ai.response.finish_reasons": '["LENGTH"]'}, [True]),  # Spring AI: all its values are text
    ],
)
def test_an_answer_that_the_limit_ended_counts_as_truncated_wherever_the_span_says_so(attributes, reasons) -> None:
    assert [call.truncated for call in read_spans([spanned(attributes)]).calls] == reasons


@pytest.mark.parametrize(
    "value",
    [
        '{"object": "response", "incomplete_details": 7}',
        '{"object": "response", "incomplete_details": {"reason": []}}',
        '{"type": "message", "stop_reason": {}}',
        '{"generations": [[{"message": {"kwargs": {"response_metadata": {"stop_reason": 5}}}}]]}',
    ],
)
def test_a_reason_that_is_no_text_counts_as_missing(value) -> None:
    for span in (
        spanned(OPENINFERENCE | {"output.value": value}),
        spanned(GENAI | {"gen_ai.response.finish_reasons": value, "gen_ai.output.messages": f"[{value}]"}),
    ):
        call = dialect_of(span).model_call(span)
        assert call is not None
        assert call.finish_reasons == (None,)


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])  # the latter of openinference-vercel
def test_an_answer_that_is_json_is_not_taken_for_the_response(kind) -> None:
    answer = '{"id": "ticket-12", "status": "open", "type": "bug", "object": 7}'
    span = spanned(OPENINFERENCE | {"output.value": answer, "output.mime_type": kind})
    call = dialect_of(span).model_call(span)
    assert call is not None
    assert (call.response_id, call.finish_reasons) == (None, (None,))


@pytest.mark.parametrize(
    "response",
    [
        '{"id": "r", "choices": []}',
        '{"id": "r", "object": "response"}',
        '{"id": "r", "type": "message"}',
        '{"llm_output": {"id": "r"}, "generations": []}',
    ],
)
def test_a_response_gives_its_id(response) -> None:
    span = spanned(OPENINFERENCE | {"output.value": response})
    assert with_response_id(span).attributes["gen_ai.response.id"] == "r"


def test_a_streamed_text_has_no_id_even_if_it_is_a_response() -> None:
    quoted = '{"id": "r", "object": "chat.completion", "choices": [{"finish_reason": "length"}]}'
    span = spanned(OPENINFERENCE | {"output.value": quoted, "output.mime_type": "text/plain"})
    assert with_response_id(span) is span
    assert not read_spans([span]).calls[0].truncated
