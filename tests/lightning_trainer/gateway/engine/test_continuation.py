"""A real engine at temperature 1 goes on with the ids that it sampled, whatever API and framework repeats the words.

The tiny tokenizer has one id for each byte; ids beyond its vocabulary, which the model samples as well, have no text.
Words that are tokenized again lose those, as words of a tokenizer with merges come back in other pieces.
"""

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import httpx
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.sequences import samples_of
from lightning_trainer.samples.transitions.trajectories import trajectories_of
from lightning_trainer.types import Call, Credit, Sample

pytestmark = pytest.mark.engine

_WITHOUT_TEXT = range(259, 300)
_ASKED: dict[str, Any] = {
    "model": "tiny",
    "temperature": 1.0,
    # ASCII letters and ids without text: whole characters only, so that an answer has a text that can be repeated.
    "allowed_token_ids": [*range(35, 61), *range(67, 93), *_WITHOUT_TEXT],
    "ignore_eos": True,
}
_QUESTIONS = ("Is it open?", "And now?", "Why?")


@pytest.fixture
async def gateway(open_gateway, engine):
    async with open_gateway(policy="tiny") as opened:
        opened.endpoint.base_url, opened.endpoint.headers = engine.base_url, dict(engine.process.headers)
        yield opened


async def _chat(post: Callable[..., Any], history: Sequence[dict[str, str]]) -> str:
    answer = await post("/v1/chat/completions", messages=history, max_tokens=12)
    return answer.json()["choices"][0]["message"]["content"]


async def _streamed(post: Callable[..., Any], history: Sequence[dict[str, str]]) -> str:
    answer = await post("/v1/chat/completions", messages=history, max_tokens=12, stream=True)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def _second_choice(post: Callable[..., Any], history: Sequence[dict[str, str]]) -> str:
    answer = await post("/v1/chat/completions", messages=history, max_tokens=12, n=2)
    return answer.json()["choices"][1]["message"]["content"]


async def _responses(post: Callable[..., Any], history: Sequence[dict[str, str]]) -> str:
    (item,) = (await post("/v1/responses", input=history, max_output_tokens=12)).json()["output"]
    return item["content"][0]["text"]


async def _messages(post: Callable[..., Any], history: Sequence[dict[str, str]]) -> str:
    return (await post("/v1/messages", messages=history, max_tokens=12)).json()["content"][0]["text"]


async def _talk(gateway, ask: Callable[..., Any], place: str) -> list[Call]:
    """Return the calls of three turns whose history is sent as words; of several choices those that were taken."""

    async def post(path: str, **fields: Any) -> httpx.Response:
        answer = await gateway.http.post(f"{place}{path}", json={**_ASKED, **fields}, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer

    history: list[dict[str, str]] = []
    for question in _QUESTIONS:
        history.append({"role": "user", "content": question})
        history.append({"role": "assistant", "content": await ask(post, history)})
    calls = sorted(read_spans(gateway.sink.spans).calls, key=lambda call: (call.start_ns, call.call_id))
    said = [message["content"] for message in history if message["role"] == "assistant"]
    assert all(said)
    return [call for call in calls if _text(call) in said]


def _text(call: Call) -> str:
    return "".join(chr(id + ord("A") - 35) for id in call.response_ids if id not in _WITHOUT_TEXT)


def _merged(calls: Sequence[Call], make_attempt) -> tuple[Sample, ...]:
    attempts = {call.attempt_id: make_attempt(call.attempt_id) for call in calls if call.attempt_id}
    credits = {call.call_id: Credit(1.0, "row") for call in calls}
    return samples_of(trajectories_of(calls, attempts, {}, {}), credits, Limit(1000))


@pytest.mark.parametrize("ask", [_chat, _streamed, _second_choice, _responses, _messages])
async def test_three_turns_sent_as_words_are_one_sample(gateway, make_attempt, ask) -> None:
    calls = await _talk(gateway, ask, "/rollouts/run-1/agents/solver")
    assert len(calls) == 3
    assert all(set(call.response_ids) & set(_WITHOUT_TEXT) for call in calls), "not what the words are tokenized to"
    (sample,) = _merged(calls, make_attempt)
    assert len(sample.segments) == 3
    assert sum(sample.loss_mask) == 36
    for before, call in pairwise(calls):
        assert call.prompt_ids[: len(before.prompt_ids) + 12] == (*before.prompt_ids, *before.response_ids)
    kept = {span.attributes.get(semconv.PROMPT_KEPT_TOKENS, 0) for span in gateway.sink.spans}
    assert kept == {0, *(len(call.prompt_ids) + 12 for call in calls[:-1])}


async def test_words_of_nobodys_conversation_are_tokenized(gateway, make_attempt) -> None:
    """And so is everything where vLLM does not do it by itself, which is what the patch is for."""
    calls = await _talk(gateway, _chat, "")
    assert len(calls) == 3
    for before, call in pairwise(calls):
        assert call.prompt_ids[: len(before.prompt_ids)] == before.prompt_ids
        assert call.prompt_ids[: len(before.prompt_ids) + 12] != (*before.prompt_ids, *before.response_ids)
        assert not set(call.prompt_ids) & set(_WITHOUT_TEXT)


async def test_two_attempts_keep_each_their_own(gateway, make_attempt) -> None:
    calls = await asyncio.gather(
        *(_talk(gateway, _chat, f"/rollouts/run-{number}/agents/solver") for number in range(4))
    )
    every = {call.call_id: call for talk in calls for call in talk}
    assert len(every) == 12
    assert [len(sample.segments) for sample in _merged(list(every.values()), make_attempt)] == [3, 3, 3, 3]


async def test_a_prompt_that_fits_as_words_is_not_refused_for_the_ids_that_were_sampled(gateway, engine) -> None:
    place = "/rollouts/run-1/agents/solver/v1/chat/completions"

    async def ask(history: list[dict[str, str]], limit: int) -> str:
        body = {**_ASKED, "messages": history, "max_tokens": limit}
        answer = await gateway.http.post(place, json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return answer.json()["choices"][0]["message"]["content"]

    history = [{"role": "user", "content": "?"}]
    said = await ask(history, 60)
    history += [{"role": "assistant", "content": said}, {"role": "user", "content": "?"}]
    await ask(history, 2)
    kept = (await gateway.record(2)).attributes
    as_sampled = int(kept[semconv.INPUT_TOKENS])
    assert semconv.PROMPT_KEPT_TOKENS in kept
    assert len(said) < 59, "the words alone are two tokens shorter or more"
    await ask(history, engine.settings.engine.max_model_len - as_sampled + 1)
    words = (await gateway.record(3)).attributes
    assert semconv.PROMPT_KEPT_TOKENS not in words
    assert words[semconv.INPUT_TOKENS] == as_sampled - (60 - len(said))
