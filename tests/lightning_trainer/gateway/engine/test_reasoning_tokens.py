"""``reasoning_tokens`` of a usage: the sampled tokens whose text is the reasoning that the answer has."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from lightning_trainer.gateway.engine.transcript import Transcript


def _logprobs(tokens: Sequence[str]) -> dict[str, Any]:
    return {"content": [{"token": text, "bytes": list(text.encode()), "logprob": -1.0} for text in tokens]}


def _whole(tokens: Sequence[str], **message: Any) -> int:
    transcript = Transcript(1)
    transcript.add({"choices": [{"index": 0, "message": message, "logprobs": _logprobs(tokens)}]})
    return transcript.reasoning_tokens


def _streamed(*chunks: tuple[Sequence[str], dict[str, Any]]) -> int:
    transcript = Transcript(1)
    for tokens, delta in chunks:
        transcript.add({"choices": [{"index": 0, "delta": delta, "logprobs": _logprobs(tokens)}]})
    return transcript.reasoning_tokens


@pytest.mark.parametrize(
    ("tokens", "reasoning", "count"),
    [
        (["<think>", "\n", "So", " 4", ".", "\n", "</think>", "\n\n", "4", "<end>"], "So 4.", 5),
        (["So", " 4", ".\n", "</think>", "4"], "\nSo 4.\n", 3),  # the prompt ends with the mark that begins a thought
        (["So", " 4"], "So 4", 2),  # cut short
        (["<think>", "think", "</think>"], "think", 1),
        (["<think>", "t", "hink", "</think>"], "think", 2),  # and not where the mark has the word
        (["", "", "🤔", " ha", "</think>", "4"], "🤔 ha", 4),  # bytes of a character that is not yet whole have no text
        (["Here", " is", " my", " thought", ":", " So", ".", " Answer", ":", "4"], "So.", 2),
        (["So", "4</", "think>"], "So4", 2),
        (["▁So", "4"], "something that no token says", 0),
        (["4"], None, 0),
        (["<think>", "\n\n", "</think>", "4"], "\n\n", 0),
    ],
)
def test_of_a_whole_answer(tokens: list[str], reasoning: str | None, count: int) -> None:
    assert _whole(tokens, reasoning=reasoning, content="4") == count


def test_of_a_stream_whose_parser_holds_back_what_it_may_need() -> None:
    chunks = (
        ([], {"role": "assistant", "content": ""}),
        (["<think>"], {}),
        (["\n", "So"], {}),
        ([" 4"], {"reasoning": "\nSo"}),
        ([".", "</think>", "4"], {"reasoning": " 4.", "content": "4"}),
        ([" 4"], {"content": " 4"}),
    )
    assert _streamed(*chunks) == 4


def test_of_thoughts_with_a_call_between_them_nothing_is_said() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    assert _streamed((["a"], {"reasoning": "a"}), (["f"], {"tool_calls": [call]}), (["b"], {"reasoning": "b"})) == 0


def test_tokens_are_known_where_the_caller_wants_ids_for_their_texts() -> None:
    transcript = Transcript(1)
    content = [{"token": "token_id:7", "bytes": list(b"So"), "logprob": -1.0}]
    choice = {"index": 0, "message": {"reasoning": "So", "content": None}, "logprobs": {"content": content}}
    transcript.add({"choices": [choice]})
    assert transcript.reasoning_tokens == 1


@pytest.mark.parametrize("count", [1, 2])
async def test_chat_completions_say_it(gateway, count: int) -> None:
    gateway.engine.thinks = 2
    whole = (await gateway.post(n=count)).json()
    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2 * count}
    options = {"stream": True, "stream_options": {"include_usage": True}}
    asked_all = {"return_token_ids": True, "logprobs": True, "top_logprobs": 0}
    for more in ({}, asked_all):
        streamed = await gateway.post(n=count, **options, **more)
        last = streamed.text.strip().splitlines()[-3]
        usage = json.loads(last.removeprefix("data: "))["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * count}
        assert usage["completion_tokens"] == 5


async def test_responses_say_it(gateway) -> None:
    gateway.engine.thinks = 2
    asked = {"model": "sql", "input": "?"}
    whole = (await gateway.http.post("/v1/responses", json=asked)).json()
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    streamed = await gateway.http.post("/v1/responses", json={**asked, "stream": True})
    last = json.loads(streamed.text.strip().splitlines()[-1].removeprefix("data: "))
    assert last["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
