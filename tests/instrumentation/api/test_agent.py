"""The decorator changes nothing about a function except that what happens below it has a name."""

import asyncio
import gc
import inspect
import os
import pickle
import subprocess
import sys

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.scope import current, current_agent


def name_here() -> str | None:
    agent = current_agent()
    return agent.name if agent else None


@lt.agent("module level")
def at_module_level() -> str | None:
    return name_here()


def test_every_kind_of_function_keeps_its_kind_and_speaks_under_its_name(recording):
    @lt.agent("sync")
    def sync(x: int, *, y: int = 2) -> tuple:
        """Doc."""
        return x, y, name_here()

    @lt.agent("coroutine")
    async def coroutine() -> str | None:
        await asyncio.sleep(0)
        return name_here()

    @lt.agent("generator")
    def generator():
        yield name_here()

    @lt.agent("async generator")
    async def async_generator():
        yield name_here()

    async def collect():
        return [item async for item in async_generator()]

    assert sync(1, y=3) == (1, 3, "sync")
    assert asyncio.run(coroutine()) == "coroutine"
    assert list(generator()) == ["generator"]
    assert asyncio.run(collect()) == ["async generator"]
    assert inspect.iscoroutinefunction(coroutine)
    assert inspect.isgeneratorfunction(generator)
    assert inspect.isasyncgenfunction(async_generator)
    assert (sync.__name__, sync.__doc__) == ("sync", "Doc.")
    assert list(inspect.signature(sync).parameters) == ["x", "y"]
    assert pickle.loads(pickle.dumps(at_module_level))() == "module level"
    names = [span.name for span in recording.spans()]
    assert names == [
        "invoke_agent sync",
        "invoke_agent coroutine",
        "invoke_agent generator",
        "invoke_agent async generator",
        "invoke_agent module level",
    ]
    span = recording.spans()[0]
    assert span.attributes[semconv.OPERATION] == "invoke_agent"
    assert span.attributes[semconv.AGENT_NAME] == "sync"
    assert span.attributes[semconv.AGENT_SOURCE] == "decorator"


def test_methods_of_every_kind(recording):
    class Solver:
        @lt.agent("method")
        def method(self):
            return self, name_here()

        @lt.agent("above static")
        @staticmethod
        def above(x):
            return x, name_here()

        @classmethod
        @lt.agent("below class")
        def below(cls):
            return cls, name_here()

        @lt.agent
        def bare(self):
            return name_here()

    solver = Solver()
    assert solver.method() == (solver, "method")
    assert Solver.above(1) == solver.above(1) == (1, "above static")
    assert Solver.below() == (Solver, "below class")
    assert solver.bare() == "bare"


def test_the_innermost_agent_wins_and_the_outer_one_is_back_after_it(recording):
    @lt.agent("inner")
    def inner():
        return name_here()

    @lt.agent("outer")
    def outer():
        return [name_here(), inner(), name_here()]

    assert outer() == ["outer", "inner", "outer"]
    assert name_here() is None
    spans = recording.spans()
    assert spans[1].parent_span_id == spans[0].span_id
    assert spans[1].trace_id == spans[0].trace_id


def test_an_exception_is_recorded_and_is_the_same_object(recording):
    problem = ValueError("42 is wrong")

    @lt.agent("fails")
    def fails():
        raise problem

    with pytest.raises(ValueError, match="42") as caught:
        fails()
    assert caught.value is problem
    span = recording.span("invoke_agent")
    assert span.error == "42 is wrong"
    assert span.attributes[semconv.ERROR_TYPE] == "ValueError"
    assert span.events[0][0] == "exception"


def test_a_generator_receives_throws_closes_and_returns_as_before(recording):
    log = []

    @lt.agent("talker")
    def talker():
        try:
            received = yield "first"
            log.append(received)
            try:
                yield "second"
            except KeyError as error:
                log.append(error)
            yield "third"
            return "returned"
        finally:
            log.append("cleaned")

    talk = talker()
    assert next(talk) == "first"
    assert talk.send("hello") == "second"
    thrown = KeyError("x")
    assert talk.throw(thrown) == "third"
    with pytest.raises(StopIteration) as stop:
        next(talk)
    assert stop.value.value == "returned"
    assert log == ["hello", thrown, "cleaned"]

    other = talker()
    next(other)
    other.close()
    assert log[-1] == "cleaned"
    assert [span.error for span in recording.spans()] == [None, None]


def test_a_function_that_returns_a_generator_speaks_under_its_name_while_the_generator_runs(recording):
    def pages():
        received = yield name_here()
        yield received, name_here()
        return "returned"

    async def async_pages():
        yield name_here()

    @lt.agent("reader")
    def read(begin):
        return begin()

    reading = read(pages)
    assert next(reading) == "reader"
    assert name_here() is None
    assert reading.send("hello") == ("hello", "reader")
    with pytest.raises(StopIteration, match="returned"):
        next(reading)

    async def collect():
        return [item async for item in read(async_pages)]

    assert asyncio.run(collect()) == ["reader"]
    shared = pages()
    assert read(lambda: shared) is shared
    assert [span.error for span in recording.spans()] == [None, None, None]


def test_a_suspended_generator_is_not_around_the_code_that_reads_it(recording):
    @lt.agent("reader")
    def read():
        yield name_here()
        yield name_here()

    pages = read()
    assert next(pages) == "reader"
    assert name_here() is None
    with lt.rollout("t"):
        # The rollout did not exist when the generator began: it goes on where it was.
        assert next(pages) == "reader"
        assert name_here() is None


async def test_an_async_generator_receives_throws_and_closes(recording):
    log = []

    @lt.agent("talker")
    async def talker():
        try:
            log.append((yield name_here()))
            try:
                yield "second"
            except KeyError:
                yield "caught"
        finally:
            await asyncio.sleep(0)
            log.append(name_here())

    talk = talker()
    assert await anext(talk) == "talker"
    assert name_here() is None
    assert await talk.asend("hello") == "second"
    assert await talk.athrow(KeyError("x")) == "caught"
    await talk.aclose()
    assert log == ["hello", "talker"]
    recording.span("invoke_agent")


async def test_a_cancelled_coroutine_ends_its_span(recording):
    @lt.agent("sleeper")
    async def sleeper():
        await asyncio.sleep(60)

    task = asyncio.create_task(sleeper())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recording.span("invoke_agent").attributes[semconv.ERROR_TYPE].endswith("CancelledError")


def test_a_function_that_hands_out_a_coroutine_is_timed_until_it_was_awaited(recording):
    async def work():
        await asyncio.sleep(0.02)
        return name_here()

    @lt.agent("lazy")
    def lazy():
        return work()

    assert asyncio.run(lazy()) == "lazy"
    span = recording.span("invoke_agent")
    assert span.end_ns - span.start_ns >= 20_000_000


@pytest.mark.parametrize("name", [3, "", "  ", b"x"])
def test_a_name_that_is_no_name_is_refused_at_decoration(name):
    with pytest.raises(TypeError, match=r"@lt\.agent"):
        lt.agent(name)


def test_a_block_speaks_under_its_name_and_is_a_span(recording):
    async def named():
        async with lt.agent("async block"):
            await asyncio.sleep(0)
            return name_here()

    with lt.agent("block") as block:
        assert name_here() == block.name == "block"
        assert lt.agent("inner")(name_here)() == "inner"
        with lt.agent("nested"):
            assert name_here() == "nested"
        assert name_here() == "block"
    assert name_here() is None
    assert asyncio.run(named()) == "async block"
    assert name_here() is None
    spans = recording.spans()
    assert [span.name.removeprefix("invoke_agent ") for span in spans] == ["block", "inner", "nested", "async block"]
    assert {span.parent_span_id for span in spans[1:3]} == {spans[0].span_id}
    assert spans[0].attributes[semconv.AGENT_SOURCE] == "with"


async def test_blocks_of_tasks_that_run_at_once_stay_apart(recording):
    async def one(name):
        async with lt.agent(name):
            await asyncio.sleep(0.01)
            return name_here()

    assert await asyncio.gather(*(one(f"a{number}") for number in range(8))) == [f"a{number}" for number in range(8)]


def test_an_error_passes_a_block_and_marks_its_span(recording):
    with pytest.raises(KeyError), lt.agent("fails"):
        raise KeyError("x")
    assert recording.span("invoke_agent").error == "'x'"


def test_one_name_serves_blocks_and_functions_one_after_the_other(recording):
    writer = lt.agent("writer")
    for _ in range(2):
        with writer:
            assert name_here() == "writer"
    assert writer(name_here)() == "writer"
    with (
        writer,
        pytest.raises(RuntimeError, match="'writer' is entered already; make a new one for every block"),
        writer,
    ):
        pass
    assert len(recording.spans("invoke_agent")) == 4


def test_a_block_without_a_name_is_refused():
    with pytest.raises(TypeError, match="a block of code has no name"), lt.agent():
        pass


@pytest.mark.long
def test_an_agent_that_names_nothing_is_said(caplog):
    lt.agent("support")
    gc.collect()
    assert "lt.agent('support') names nothing by itself" in caplog.text


def test_what_is_no_function_is_refused_at_decoration():
    with pytest.raises(TypeError, match="the class Thing"):

        @lt.agent("x")
        class Thing:
            pass

    with pytest.raises(TypeError, match="function or method"):
        lt.agent("x")(3)  # type: ignore[type-var]


def test_scope_is_empty_after_everything(recording):
    before = current()
    at_module_level()
    assert current() is before


def test_a_name_given_to_init_is_what_nothing_else_names(receiver, tmp_path):
    lt.shutdown(0.0)
    lt.init(receiver.url, spool_dir=tmp_path, agent="whole program")
    assert name_here() == "whole program"
    assert at_module_level() == "module level"
    lt.shutdown()
    assert name_here() is None


LENT = """
import sys
count = sys.getrefcount
sys.getrefcount = lambda thing: count(thing) - 2  # as on Python 3.14, where a local variable is lent to a function
import lightning_instrumentation as lt
kept = []
def numbers():
    yield 1
    yield 2
@lt.agent("reader")
def read():
    kept.append(numbers())
    return kept[0]
for number in read():
    break
print(*kept[0])
"""


@pytest.mark.process
def test_a_generator_that_is_kept_elsewhere_is_not_closed_however_python_counts_references(tmp_path):
    environment = {**os.environ, "LIGHTNING_ENDPOINT": "http://127.0.0.1:9", "LIGHTNING_SPOOL_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", LENT], env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout == "2\n", done.stderr


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
@pytest.mark.parametrize("kind", ["generator", "async generator", "coroutine"])
def test_what_a_function_returns_and_nobody_starts_leaves_no_span_open(recording, kind):
    """Before: the span never ended, so its attempt was held back for it."""

    async def later():
        return 1

    async def one_by_one():
        yield 1

    made = {"generator": lambda: (item for item in ()), "async generator": one_by_one, "coroutine": later}

    @lt.agent("writer")
    def write():
        return made[kind]()

    with lt.rollout("t"):
        dropped = write()
        del dropped
    assert len(recording.spans("invoke_agent")) == 1
