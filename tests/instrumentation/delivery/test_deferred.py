"""The garbage collector may run at any moment, also while this very thread holds one of our locks."""

import gc
import threading
from typing import Any

import lightning_instrumentation as lt
import openai
import pytest
from lightning_instrumentation import runtime, semconv


def collected_with_the_spools_lock_held() -> bool:
    """Whether a collection ends that begins while a span is being written."""
    started = runtime.runtime()
    assert started is not None
    spool = started.outbox._disk
    assert spool is not None

    def write_and_collect() -> None:
        with spool._lock:
            gc.collect()

    thread = threading.Thread(target=write_and_collect, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


@pytest.fixture(autouse=True)
def only_when_told():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.long
def test_a_stream_that_nobody_holds_ends_without_waiting_for_a_lock(recording):
    client = openai.OpenAI(base_url=recording.model.base_url, api_key="x")
    asked = {"model": "m", "messages": [{"role": "user", "content": "a b c"}]}
    client.chat.completions.create(**asked)  # type: ignore[call-overload]
    recording.spans("chat")
    stream: Any = client.chat.completions.create(**asked, stream=True)  # type: ignore[call-overload]
    next(stream)
    stream.itself = stream
    del stream
    assert collected_with_the_spools_lock_held()
    _, forgotten = recording.spans("chat")
    assert forgotten.attributes[semconv.STREAM_COMPLETE] is False


@pytest.mark.long
def test_an_agent_that_is_a_generator_ends_without_waiting_for_a_lock(recording):
    @lt.agent("counter")
    def numbers(held):
        held.append(held)
        yield 1
        yield 2

    assert list(numbers([])) == [1, 2]
    recording.spans("invoke_agent")
    running = numbers([])
    assert next(running) == 1
    cycle: list = [running]
    cycle.append(cycle)
    del running, cycle
    assert collected_with_the_spools_lock_held()
    assert len(recording.spans("invoke_agent")) == 2
