"""``lt.uncaptured``: inside of it nothing of ours happens."""

import threading
from typing import Any

import httpx
import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import semconv

HELLO: Any = [{"role": "user", "content": "hello"}]


def ask(base_url: str) -> None:
    with openai.OpenAI(base_url=base_url, api_key="k", max_retries=0) as client:
        client.chat.completions.create(model="m", messages=HELLO)


def ask_plainly(base_url: str) -> None:
    httpx.post(f"{base_url}/chat/completions", json={"model": "m", "messages": HELLO}).raise_for_status()


@pytest.mark.parametrize("ask", [ask, ask_plainly])
def test_a_call_inside_leaves_no_span_and_gets_nothing_on_top(recording, ask):
    with lt.rollout("t"), lt.uncaptured():
        ask(recording.model.base_url)
    ask(recording.model.base_url)
    assert len(recording.spans("chat m")) == 1
    (_, first, asked), (_, _, asked_later) = recording.model.requests
    assert not {"traceparent", "baggage"} & {name.lower() for name in first}
    assert "logprobs" not in asked
    assert "logprobs" in asked_later


def test_agents_tools_and_threads_inside_are_left_alone_too(recording):
    @lt.tool
    def look_up(order: str) -> str:
        ask(recording.model.base_url)
        return order

    with lt.uncaptured(), lt.agent("hidden"):
        look_up("4711")
        thread = threading.Thread(target=ask, args=(recording.model.base_url,))
        thread.start()
        thread.join()
    assert recording.spans() == []
    assert len(recording.model.requests) == 2


async def test_it_ends_with_the_block_and_is_async_too(recording):
    async with lt.uncaptured():
        ask(recording.model.base_url)
    with lt.agent("seen"):
        ask(recording.model.base_url)
    (call,) = recording.spans("chat m")
    assert call.attributes[semconv.AGENT_NAME] == "seen"


def test_rewards_inside_are_still_recorded(recording):
    with lt.uncaptured(), lt.rollout("t"):
        lt.reward(1.0)
    assert {span.name.split()[0] for span in recording.spans()} == {"rollout", "evaluate"}


def test_a_block_is_entered_once(recording):
    block = lt.uncaptured()
    with block, pytest.raises(RuntimeError, match="entered already"), block:
        pass


@pytest.mark.parametrize("ask", [ask, ask_plainly])
def test_a_claimed_agents_call_goes_where_it_always_went(begin, daemon, host, ask):
    daemon.select("prose", "writer")
    begin()
    with lt.agent("writer"):
        with lt.uncaptured():
            ask(host.base_url)
        ask(host.base_url)
    assert (len(host.requests), len(daemon.requests)) == (1, 1)
    assert len(daemon.chats()) == 1
