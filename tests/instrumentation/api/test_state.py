"""``lt.state``: on model calls alone, from the block to the gateway."""

import asyncio
import gc
from typing import Any

import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.block import LONGEST_NAME
from lightning_instrumentation.scope import current

HELLO: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture
def call(recording):
    """Make a model call and return its span and its baggage."""
    client = openai.OpenAI(base_url=recording.model.base_url, api_key="k", max_retries=0)

    def call():
        client.chat.completions.create(model="m", messages=HELLO)
        _, headers, _ = recording.model.requests[-1]
        return recording.span("chat"), headers.get("baggage", "")

    return call


def test_the_call_says_in_which_state_it_was_made(call):
    with lt.state("kitchen, 1"):
        span, baggage = call()
    assert span.attributes[semconv.STATE] == "kitchen, 1"
    assert "lightning.state=kitchen%2C%201" in baggage.split(",")


def test_outside_of_the_block_there_is_none(call):
    with lt.state("kitchen"):
        pass
    span, baggage = call()
    assert semconv.STATE not in span.attributes
    assert "state" not in baggage


def test_the_innermost_counts_below_agents_too_and_not_in_another_rollout():
    async def named():
        async with lt.state(7):
            return current().state

    with lt.state("outer"):
        assert lt.agent("worker")(lambda: current().state)() == "outer"
        with lt.state("inner"):
            assert current().state == "inner"
        assert asyncio.run(named()) == "7"
        with lt.rollout("t"):
            assert current().state is None
        assert current().state == "outer"
    assert current().state is None


def test_of_a_long_name_the_digest_is_recorded():
    def recorded(name):
        with lt.state(name):
            return current().state or ""

    long = "x" * LONGEST_NAME
    assert recorded(long) == long
    digests = [recorded(long + end) for end in ("a", "a", "b")]
    assert digests[0] == digests[1] != digests[2]
    assert {len(digest) for digest in digests} == {32}


@pytest.mark.parametrize("name", [None, "", "  "])
def test_a_name_that_is_empty_is_refused(name):
    with pytest.raises(TypeError, match="a state needs a name"):
        lt.state(name)


@pytest.mark.long
def test_a_state_that_is_not_entered_is_said(caplog):
    lt.state("kitchen")
    gc.collect()
    assert "write `with lt.state(...):`" in caplog.text
