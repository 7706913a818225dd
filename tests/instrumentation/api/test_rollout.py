"""A rollout holds what happens in its block, and nothing else."""

import asyncio
import json
import logging
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from datetime import date
from multiprocessing.pool import ThreadPool
from queue import Queue
from typing import Any

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import runtime, semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.scope import current
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


@lt.agent("worker")
def work() -> str | None:
    identity = current().identity
    return identity.rollout_id if identity else None


def test_the_root_span_says_which_attempt_it_was(recording):
    with lt.rollout(7, group_id="g", mode="evaluate", input={"question": "2+3?"}) as rollout:
        assert work() == rollout.rollout_id
    root = recording.span("rollout")
    assert root.parent_span_id == ""
    assert root.trace_id == rollout.trace_id
    assert root.error is None
    assert root.attributes == {
        semconv.OPERATION: "invoke_workflow",
        semconv.ROLLOUT_ROOT: True,
        semconv.ROLLOUT_ID: rollout.rollout_id,
        semconv.ATTEMPT_ID: rollout.attempt_id,
        semconv.TASK_ID: "7",
        semconv.GROUP_ID: "g",
        semconv.ROLLOUT_MODE: "evaluate",
        semconv.ROLLOUT_INPUT: '{"question": "2+3?"}',
        semconv.SEQUENCE: root.attributes[semconv.SEQUENCE],
        semconv.SEQUENCE_NUMBER: 1,
        semconv.SEQUENCE_STARTED: 2,
    }
    agent = recording.span("invoke_agent")
    assert agent.parent_span_id == root.span_id
    assert agent.attributes[semconv.TASK_ID] == "7"


@pytest.mark.parametrize("mode", ["train", "evaluate"])
def test_an_attempt_that_a_person_interrupts_does_not_count(recording, mode):
    """Before, it took one of its group's places, without a reward."""
    with pytest.raises(KeyboardInterrupt), lt.rollout("t", mode=mode):
        raise KeyboardInterrupt
    assert recording.span("rollout").attributes[semconv.ROLLOUT_MODE] == "retried"


@pytest.mark.parametrize("awaited", [True, False])
def test_a_coroutine_that_a_person_interrupts_does_not_count(recording, awaited):
    """asyncio cancels the main task and what that awaits, and when that has ended, all others."""

    async def attempt() -> None:
        async with lt.rollout("t"):
            await asyncio.sleep(60)

    async def interrupted() -> None:
        tasks = [asyncio.create_task(attempt()) for _ in range(2)]
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGINT)
        await (asyncio.gather(*tasks) if awaited else asyncio.sleep(60))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(interrupted())
    finally:
        signal.signal(signal.SIGINT, before)
    assert [span.attributes[semconv.ROLLOUT_MODE] for span in recording.spans("rollout")] == ["retried"] * 2


def test_a_coroutine_that_is_cancelled_otherwise_has_failed(recording):
    async def attempt() -> None:
        async with lt.rollout("t"):
            await asyncio.sleep(60)

    async def cancelling() -> None:
        task = asyncio.create_task(attempt())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task, 0.01)

    asyncio.run(cancelling())
    root = recording.span("rollout")
    assert root.attributes[semconv.ROLLOUT_MODE] == "train"
    assert root.attributes["error.type"] == "asyncio.exceptions.CancelledError"


@pytest.mark.parametrize(("pressed", "mode"), [(True, "retried"), (False, "train")])
def test_an_async_cell_of_a_notebook_that_a_person_interrupts_does_not_count(recording, pressed, mode):
    """ipykernel raises no KeyboardInterrupt there: its handler ends a future, which cancels the cell's task."""

    async def cell() -> None:
        async with lt.rollout("t"):
            await asyncio.sleep(60)

    async def kernel() -> None:
        sigint_future = asyncio.get_running_loop().create_future()
        running = asyncio.create_task(cell())

        def handle_sigint(*_):
            sigint_future.set_result(1)
            running.cancel()

        handle_sigint.__module__ = "ipykernel.ipkernel"
        before = signal.signal(signal.SIGINT, handle_sigint)
        try:
            await asyncio.sleep(0)
            handle_sigint() if pressed else running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        finally:
            signal.signal(signal.SIGINT, before)

    asyncio.run(kernel())
    assert recording.span("rollout").attributes[semconv.ROLLOUT_MODE] == mode


def test_an_attempt_that_has_ended_is_not_entered_again_without_a_word(recording, monkeypatch, caplog):
    monkeypatch.setattr(failures, "_said", set())
    for number in range(3):
        with lt.rollout("t", rollout_id="r1", attempt_id=f"a{number}"):
            pass
    assert "has ended" not in caplog.text
    for _ in range(2):
        with lt.rollout("t", rollout_id="r1", attempt_id="a1"):
            pass
    assert caplog.text.count("attempt 'a1' has ended, and its first end counts") == 1


@pytest.mark.parametrize("policies", ["p", ["p"]])
def test_the_root_span_names_the_policies_that_the_attempt_is_made_for(recording, policies):
    with lt.rollout("t", policies=policies):
        work()
    assert list(recording.span("rollout").attributes[semconv.ROLLOUT_POLICIES]) == ["p"]
    assert semconv.ROLLOUT_POLICIES not in recording.span("invoke_agent").attributes


def test_what_runs_before_and_after_belongs_to_no_rollout(recording):
    assert work() is None
    with lt.rollout("t"):
        work()
    assert work() is None
    before, inside, after = recording.spans("invoke_agent")
    assert semconv.ROLLOUT_ID not in before.attributes
    assert semconv.ROLLOUT_ID in inside.attributes
    assert semconv.ROLLOUT_ID not in after.attributes
    assert len({before.trace_id, inside.trace_id, after.trace_id}) == 3


def test_an_attempt_that_raises_has_failed_and_the_exception_goes_on(recording):
    problem = RuntimeError("tool is gone")
    with pytest.raises(RuntimeError) as caught, lt.rollout("t"):
        raise problem
    assert caught.value is problem
    assert recording.span("rollout").error == "tool is gone"


@pytest.mark.parametrize("odd", ["date", "tuple", "cycle"])
def test_a_rollout_begins_whatever_its_input_holds(recording, odd):
    around: list = []
    around.append(around)
    keys = {"date": {date(2026, 1, 2): "price"}, "tuple": {("a", 1): "price"}, "cycle": around}
    with lt.rollout("t", input=keys[odd]):
        work()
        lt.reward(1.0)
    root, agent = recording.span("rollout"), recording.span("invoke_agent")
    assert {span.trace_id for span in (root, agent, recording.span("evaluate"))} == {root.trace_id}
    assert root.attributes[semconv.ROLLOUT_INPUT] in (
        '{"2026-01-02":"price"}',
        '{"(\'a\', 1)":"price"}',
        '["<list>"]',
    )


def test_an_input_that_can_be_read_only_once_is_left_unread(recording):
    lines = iter(["one", "two"])
    with lt.rollout("t", input={"lines": lines}):
        assert next(lines) == "one"
    assert "list_iterator" in recording.span("rollout").attributes[semconv.ROLLOUT_INPUT]


def test_rollouts_in_threads_stay_apart_and_threads_inherit_theirs(recording):
    barrier = threading.Barrier(8)

    def attempt(number: int) -> list:
        with lt.rollout(f"t{number}", rollout_id=f"r{number}"):
            barrier.wait()
            seen = []
            threads = [threading.Thread(target=lambda: seen.append(work())) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            with ThreadPoolExecutor(1) as pool:
                seen.append(pool.submit(work).result())
            return seen

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(8)))
    assert results == [[f"r{number}"] * 3 for number in range(8)]


def test_a_pool_that_was_born_in_one_rollout_serves_each_caller_as_its_own(recording):
    with ThreadPoolExecutor(1) as pool:
        with lt.rollout("a", rollout_id="ra"):
            assert pool.submit(work).result() == "ra"
        assert pool.submit(work).result() is None
        with lt.rollout("b", rollout_id="rb"):
            assert pool.submit(work).result() == "rb"


_HANDED_OVER = {
    "apply": lambda pool: pool.apply(work),
    "apply_async": lambda pool: pool.apply_async(func=work).get(),
    "map": lambda pool: pool.map(_any, [0])[0],
    "starmap": lambda pool: pool.starmap(_any, [(0,)])[0],
    "map_async": lambda pool: pool.map_async(_any, [0]).get()[0],
    "imap": lambda pool: next(pool.imap(_any, [0])),
    "imap of chunks": lambda pool: next(pool.imap(_any, iterable=[0, 1], chunksize=2)),
    "imap_unordered": lambda pool: next(pool.imap_unordered(_any, [0])),
}


def _any(_: int) -> str | None:
    return work()


@pytest.mark.parametrize("hand_over", _HANDED_OVER.values(), ids=_HANDED_OVER)
def test_a_thread_pool_of_multiprocessing_does_too(recording, hand_over):
    with lt.rollout("a", rollout_id="ra"):
        pool = ThreadPool(1)
    with pool:
        assert hand_over(pool) is None
        for name in ("ra", "rb"):
            with lt.rollout(name, rollout_id=name):
                assert hand_over(pool) == name
        assert hand_over(pool) is None


def test_work_in_a_queue_of_ones_own_takes_its_context_along(recording):
    """The remedy that docs/capture.md names: such a thread cannot be told from one that works for its rollout alone."""
    queue: Queue = Queue()
    seen = []

    def serve() -> None:
        while (asked := queue.get()) is not None:
            context, function = asked
            seen.append(context.run(function))

    with lt.rollout("a", rollout_id="ra"):
        thread = threading.Thread(target=serve)
        thread.start()
    with lt.rollout("b", rollout_id="rb"):
        queue.put((copy_context(), work))
    queue.put(None)
    thread.join()
    assert seen == ["rb"]


def test_the_users_own_context_is_not_carried_into_threads(recording):
    from contextvars import ContextVar

    mine: ContextVar[str] = ContextVar("mine", default="default")
    mine.set("set")
    seen = []
    with lt.rollout("t"):
        thread = threading.Thread(target=lambda: seen.append(mine.get()))
        thread.start()
        thread.join()
        assert "run" not in vars(thread)
    assert seen == ["default"]


def test_misuse_is_one_clear_sentence():
    with pytest.raises(TypeError, match="needs a task id"):
        lt.rollout(None)
    with pytest.raises(ValueError, match="'test'"):
        lt.rollout("t", mode="test")
    rollout = lt.rollout("t")
    with rollout:
        pass
    with pytest.raises(RuntimeError, match="make a new one"), rollout:
        pass


def test_the_users_tracing_is_neither_used_nor_disturbed(recording, monkeypatch):
    """Ours hangs off nothing of theirs and theirs off nothing of ours; a link says that they belong together."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("user")
    global_before = trace.get_tracer_provider()
    with (
        tracer.start_as_current_span("theirs, outside") as outside,
        lt.rollout("t"),
        tracer.start_as_current_span("theirs, inside") as inside,
    ):
        work()
        assert trace.get_current_span() is inside
    assert trace.get_tracer_provider() is global_before
    theirs = exporter.get_finished_spans()
    assert [span.name for span in theirs] == ["theirs, inside", "theirs, outside"]
    assert theirs[0].parent is not None
    assert theirs[0].parent.span_id == outside.get_span_context().span_id
    root = recording.span("rollout")
    assert root.parent_span_id == ""
    assert root.links == (f"{outside.get_span_context().trace_id:032x}",)
    assert recording.span("invoke_agent").parent_span_id == root.span_id


def test_the_users_limits_and_samplers_do_not_apply(receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "5")
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "2")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "secret=1")
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path)
    with lt.rollout("a long name of a task", input="x" * 100_000):
        pass
    lt.shutdown()
    root = receiver.spans("rollout")[0]
    assert root.attributes[semconv.TASK_ID] == "a long name of a task"
    assert len(json.loads(root.attributes[semconv.ROLLOUT_INPUT])) == 100_000
    assert "secret" not in root.resource


def test_a_user_who_switched_opentelemetry_off_records_nothing_and_is_told(receiver, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    monkeypatch.setattr(runtime, "_unusable", False)
    lt.shutdown(0.0)
    with caplog.at_level(logging.WARNING, logger="lightning_instrumentation"):
        lt.init(receiver.url, spool_dir=tmp_path)
        with lt.rollout("t") as rollout:
            work()
            lt.reward(1)
    assert rollout.trace_id is None
    assert len(caplog.records) == 1
    assert list(tmp_path.iterdir()) == []


def test_random_numbers_of_a_seeded_program_stay_what_they_were(recording):
    random.seed(0)
    expected = [random.random() for _ in range(3)]
    ids = []
    for _ in range(2):
        random.seed(0)
        drawn = []
        for _ in range(3):
            with lt.rollout("t") as rollout:
                drawn.append(random.random())
                ids.append(rollout.trace_id)
        assert drawn == expected
    assert len(set(ids)) == 6


class _Unconvertible:
    def __float__(self) -> float:
        raise RuntimeError("value cannot be converted")  # as a complex tensor of torch


class _Unnamable:
    def __str__(self) -> str:
        raise RuntimeError("no name")


class TestRewards:
    def events(self, recording):
        return [span.events[0][1] for span in recording.spans("evaluate")]

    def test_a_reward_is_an_evaluation_of_the_current_attempt(self, recording):
        with lt.rollout("t") as rollout:
            lt.reward(0.5, "accuracy", explanation="half right")
        span = recording.span("evaluate accuracy")
        assert span.start_ns == span.end_ns
        assert span.trace_id == rollout.trace_id
        assert span.attributes[semconv.ATTEMPT_ID] == rollout.attempt_id
        assert span.events == (
            (
                semconv.EVALUATION_EVENT,
                {
                    semconv.EVALUATION_NAME: "accuracy",
                    semconv.EVALUATION_SCORE: 0.5,
                    semconv.EVALUATION_EXPLANATION: "half right",
                },
            ),
        )

    def test_a_reward_is_sent_before_its_rollout_ends(self, recording):
        with lt.rollout("t"):
            lt.reward(1)
            recording.receiver.wait_for(1, prefix="evaluate")

    def test_a_reward_after_the_end_names_its_rollout(self, recording):
        with lt.rollout("t") as rollout:
            pass
        rollout.reward(True)
        lt.reward(2.0, rollout_id="elsewhere")
        one, two = recording.spans("evaluate")
        assert one.attributes[semconv.ROLLOUT_ID] == rollout.rollout_id
        assert one.attributes[semconv.ATTEMPT_ID] == rollout.attempt_id
        assert one.events[0][1][semconv.EVALUATION_SCORE] == 1.0
        assert two.attributes[semconv.ROLLOUT_ID] == "elsewhere"
        assert semconv.ATTEMPT_ID not in two.attributes

    @pytest.mark.parametrize(
        "value", [float("nan"), float("inf"), -1.7e308, "0.5", None, [1], object(), _Unconvertible()]
    )
    def test_what_is_no_number_is_missing_and_said_in_one_sentence(self, recording, caplog, value):
        before = lt.stats().failed.get("reward-not-a-number", 0)
        with (
            caplog.at_level(logging.ERROR, logger="lightning_instrumentation"),
            lt.rollout("t", rollout_id="r9"),
        ):
            lt.reward(value)
        assert len(caplog.records) == 1
        assert "r9" in caplog.text
        assert "missing" in caplog.text
        (event,) = self.events(recording)
        assert semconv.EVALUATION_SCORE not in event
        assert event[semconv.ERROR_TYPE] == "not_a_finite_number"
        assert lt.stats().failed["reward-not-a-number"] == before + 1

    @pytest.mark.parametrize("what", ["name", "agent", "explanation"])
    def test_a_reward_never_raises(self, recording, what):
        before = lt.stats().failed.get("reward", 0)
        with lt.rollout("t"):
            given: Any = {what: _Unnamable()}
            lt.reward(1.0, **given)
        assert lt.stats().failed["reward"] == before + 1

    def test_a_reward_may_be_of_one_agent_or_of_one_response(self, recording):
        with lt.rollout("t") as rollout:
            lt.reward(0.5, agent="planner")
        lt.reward(0.25, response_id="chatcmpl-1")
        planner, response = recording.spans("evaluate")
        assert planner.attributes[semconv.ATTEMPT_ID] == rollout.attempt_id
        assert planner.events[0][1][semconv.EVALUATION_AGENT] == "planner"
        assert semconv.ROLLOUT_ID not in response.attributes
        assert response.attributes[semconv.RESPONSE_ID] == "chatcmpl-1"
        assert response.events[0][1][semconv.RESPONSE_ID] == "chatcmpl-1"

    def test_a_reward_for_no_rollout_is_said_in_one_sentence_and_not_recorded(self, recording, caplog):
        with caplog.at_level(logging.ERROR, logger="lightning_instrumentation"):
            lt.reward(1.0)
        assert len(caplog.records) == 1
        assert "rollout_id=" in caplog.text
        assert recording.spans() == []
