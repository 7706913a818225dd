"""``lt.prompt``: what is served, the default where nothing is, and never a program that waits or fails for it."""

import asyncio
import hashlib
import json
import multiprocessing
import threading
import time

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.prompts import live as live_module
from lightning_instrumentation.prompts.prompt import serving_prompts
from lightning_instrumentation.prompts.version import PROMPTS, PromptVersion
from lightning_instrumentation.scope import current

DEFAULT = "You are a clerk."


@pytest.fixture(autouse=True)
def forgotten():
    """Each test is a process that knows nothing."""
    live_module.live.__init__()


def serves(version: int, text: str):
    return lambda name, asked: (200, {"version": version, "text": text})


def used(recording, count: int = 1) -> list[tuple[str, int]]:
    lt.flush()
    spans = recording.receiver.wait_for(count, prefix="prompt ")
    return [(one.attributes[semconv.PROMPT_NAME], one.attributes[semconv.PROMPT_VERSION]) for one in spans]


def test_what_is_served_is_returned_and_recorded_in_the_attempt(recording):
    recording.receiver.prompt = serves(3, "Be brief.")
    with lt.rollout("t", rollout_id="r"):
        assert lt.prompt("clerk", DEFAULT) == "Be brief."
    assert used(recording) == [("clerk", 3)]
    (span,) = recording.receiver.spans("prompt ")
    assert span.attributes[semconv.ROLLOUT_ID] == "r"
    root = hashlib.sha256(DEFAULT.encode()).hexdigest()
    assert recording.receiver.asked == [("clerk", {"root": root, "default": DEFAULT})]


def test_the_daemon_is_asked_once_in_a_while_and_what_was_known_is_returned_meanwhile(recording, monkeypatch):
    recording.receiver.prompt = serves(1, "one")
    assert [lt.prompt("clerk", DEFAULT) for _ in range(20)] == ["one"] * 20
    assert len(recording.receiver.asked) == 1
    monkeypatch.setattr(live_module, "_EVERY_S", 0.0)
    live_module.live.__init__()
    recording.receiver.prompt = serves(2, "two")
    lt.prompt("clerk", DEFAULT)
    deadline = time.monotonic() + 10
    recording.receiver.prompt = serves(3, "three")
    while lt.prompt("clerk", DEFAULT) != "three" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lt.prompt("clerk", DEFAULT) == "three", "a running program gets what was chosen meanwhile"


def an_hour_later(monkeypatch) -> None:
    monkeypatch.setattr(live_module, "_OLD_S", -60.0)
    for known in live_module.live._known.values():
        known.ask_at = 0.0


def test_a_program_that_rarely_uses_its_prompt_gets_what_is_served_now_in_all_threads(recording, monkeypatch):
    recording.receiver.prompt = serves(1, "one")
    assert lt.prompt("clerk", DEFAULT) == "one"
    an_hour_later(monkeypatch)

    def slowly(name, asked):
        time.sleep(0.2)
        return 200, {"version": 2, "text": "two"}

    recording.receiver.prompt = slowly
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(lt.prompt("clerk", DEFAULT))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert found == ["two"] * 4
    assert len(recording.receiver.asked) == 2


def test_what_is_chosen_is_used_within_ten_seconds(recording):
    # Before: a program that used its prompt every 15 seconds got what had been served at its last use.
    recording.receiver.prompt = serves(1, "one")
    assert lt.prompt("clerk", DEFAULT) == "one"
    recording.receiver.prompt = serves(2, "two")
    for known in live_module.live._known.values():
        known.ask_at -= 10.0
    assert lt.prompt("clerk", DEFAULT) == "two"


def test_a_daemon_that_hangs_later_leaves_what_was_known_and_costs_a_second(recording, monkeypatch):
    recording.receiver.prompt = serves(1, "one")
    assert lt.prompt("clerk", DEFAULT) == "one"
    an_hour_later(monkeypatch)
    go_on = threading.Event()
    recording.receiver.prompt = lambda name, asked: (500, {"waited": go_on.wait(4)})
    began = time.monotonic()
    assert [lt.prompt("clerk", DEFAULT) for _ in range(5)] == ["one"] * 5
    assert time.monotonic() - began < 2.5
    go_on.set()


def test_another_default_is_another_text(recording):
    recording.receiver.prompt = lambda name, asked: (200, {"version": 0, "text": asked["default"]})
    assert (lt.prompt("clerk", DEFAULT), lt.prompt("clerk", "Other.")) == (DEFAULT, "Other.")
    assert len({asked["root"] for _, asked in recording.receiver.asked}) == 2


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, {"detail": "Not Found"}), "it answered 404, as one that is older"),
        ((422, {"error": {"message": "too many prompts"}}), "too many prompts"),
        ((200, {"text": 7}), "is not a version of a prompt"),
        ((200, {"version": 7, "text": None}), "is not a version of a prompt"),
        ((200, {"version": True, "text": "x"}), "is not a version of a prompt"),
        ((200, {"version": 7, "text": "x" * 70_000}), "is not a version of a prompt"),
        ((200, []), "is not a version of a prompt"),
    ],
)
def test_what_answers_otherwise_is_said_once_and_the_default_is_used(recording, caplog, answer, said):
    lt.shutdown(0.0)
    lt.init(recording.receiver.url)
    live_module.failures._said.clear()
    recording.receiver.prompt = lambda name, asked: answer
    assert lt.prompt("clerk", DEFAULT) == DEFAULT
    assert lt.prompt("other", DEFAULT) == DEFAULT
    assert caplog.text.count(said) == 1


def test_without_a_daemon_it_is_the_default_at_once():
    lt.shutdown(0.0)
    lt.init("http://127.0.0.1:9")
    began = time.monotonic()
    assert lt.prompt("clerk", DEFAULT) == DEFAULT
    assert time.monotonic() - began < 1.5
    lt.shutdown(0.0)


def test_a_daemon_that_hangs_costs_the_first_second_and_is_used_when_it_answers(recording):
    go_on = threading.Event()

    def later(name, asked):
        go_on.wait(20)
        return 200, {"version": 1, "text": "late"}

    recording.receiver.prompt = later
    began = time.monotonic()
    assert [lt.prompt(name, DEFAULT) for name in ("clerk", "clerk", "writer", "clerk")] == [DEFAULT] * 4
    assert time.monotonic() - began < 3, "one second of the whole process, and not of each call"
    go_on.set()
    deadline = time.monotonic() + 10
    while lt.prompt("clerk", DEFAULT) != "late" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert lt.prompt("clerk", DEFAULT) == "late"


def test_a_prompt_that_is_used_later_than_the_first_is_waited_for_as_well(recording, monkeypatch):
    monkeypatch.setattr(live_module, "_FIRST_S", 0.4)
    live_module.live.__init__()
    recording.receiver.prompt = lambda name, asked: (200, {"version": 1, "text": f"served to {name}"})
    assert lt.prompt("planner", DEFAULT) == "served to planner"
    time.sleep(0.5)  # its model answers
    assert lt.prompt("writer", DEFAULT) == "served to writer"
    assert used(recording, 2) == [("planner", 1), ("writer", 1)]


def test_a_hot_loop_records_a_version_once_for_each_attempt(recording):
    recording.receiver.prompt = serves(3, "Be brief.")
    for attempt in ("a", "b"):
        with lt.rollout("t", rollout_id=attempt, attempt_id=attempt):
            for _ in range(200):
                lt.prompt("clerk", DEFAULT)
    for _ in range(200):
        lt.prompt("clerk", DEFAULT)
    assert used(recording, 3) == [("clerk", 3)] * 3
    spans = recording.receiver.spans("prompt ")
    assert [one.attributes.get(semconv.ATTEMPT_ID) for one in spans] == ["a", "b", None]


def test_a_default_that_must_not_be_recorded_is_not_sent(recording):
    lt.init(capture_content=False)
    recording.receiver.prompt = lambda name, asked: (404, {"error": {"message": "unknown"}})
    assert lt.prompt("clerk", DEFAULT) == DEFAULT
    lt.init(capture_content=True, redact="emails")
    assert lt.prompt("clerk", "Write to me@example.org.") == "Write to me@example.org."
    assert [asked["default"] for _, asked in recording.receiver.asked] == [None, None]


def test_what_a_search_gives_comes_first_in_threads_tasks_and_rollouts_below(recording):
    recording.receiver.prompt = serves(3, "served")
    found = []
    with serving_prompts({"clerk": PromptVersion(7, "tried")}):
        with lt.rollout("t"):
            assert lt.prompt("clerk", DEFAULT) == "tried"
        with serving_prompts({"writer": PromptVersion(2, "w")}):
            assert (lt.prompt("clerk", DEFAULT), lt.prompt("writer", DEFAULT)) == ("tried", "w")

        async def task():
            await asyncio.sleep(0)
            found.append(lt.prompt("clerk", DEFAULT))

        async def main():
            await asyncio.gather(task(), task())

        asyncio.run(main())
    assert found == ["tried", "tried"]
    assert current().prompts is None
    assert lt.prompt("clerk", DEFAULT) == "served"
    assert {version for _, version in used(recording, 4)} == {2, 3, 7}


def test_a_program_of_a_search_finds_its_texts_in_the_environment(recording, monkeypatch):
    monkeypatch.setenv(PROMPTS, json.dumps({"clerk": {"version": 5, "text": "tried"}}))
    assert lt.prompt("clerk", DEFAULT) == "tried"
    assert lt.prompt("other", DEFAULT) == DEFAULT
    assert used(recording) == [("clerk", 5)]


@pytest.mark.parametrize("text", ["{", "[]", '{"clerk": 7}', '{"clerk": {"text": "x"}}'])
def test_a_malformed_environment_is_said_and_not_used(recording, monkeypatch, caplog, text):
    live_module.failures._said.clear()
    monkeypatch.setenv(PROMPTS, text)
    assert lt.prompt("clerk", DEFAULT) == DEFAULT
    assert f"{PROMPTS} is not an object like" in caplog.text


def test_a_thread_that_cannot_start_leaves_the_default_and_no_wait(recording, monkeypatch):
    def no_more(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    began = time.monotonic()
    assert lt.prompt("clerk", DEFAULT) == DEFAULT
    assert time.monotonic() - began < 0.9


def test_where_nothing_is_captured_the_version_is_served_and_not_recorded(recording):
    recording.receiver.prompt = serves(3, "Be brief.")
    with lt.uncaptured():
        assert lt.prompt("clerk", DEFAULT) == "Be brief."
    lt.flush()
    assert recording.receiver.spans("prompt ") == []


@pytest.mark.parametrize("limit", ["_MOST", "_MOST_OF_NAME"])
def test_texts_that_change_with_each_call_do_not_fill_the_process(recording, caplog, monkeypatch, limit):
    monkeypatch.setattr(live_module, limit, 3)
    live_module.failures._said.clear()
    recording.receiver.prompt = lambda name, asked: (200, {"version": 0, "text": asked["default"]})
    assert [lt.prompt("clerk", f"Today is {day}.") for day in range(5)] == [f"Today is {day}." for day in range(5)]
    assert len(recording.receiver.asked) == 3
    assert "give it a fixed text, no f-string" in caplog.text
    recording.receiver.prompt = serves(1, "one")
    assert lt.prompt("other", DEFAULT) == (DEFAULT if limit == "_MOST" else "one")


def test_what_is_no_prompt_is_the_programmers_to_see(recording):
    with pytest.raises(TypeError, match="takes a name and a text, got str and int"):
        lt.prompt("clerk", 7)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="'a b' cannot name a prompt"):
        lt.prompt("a b", DEFAULT)
    assert lt.prompt("clerk", "") == ""
    assert lt.prompt("clerk", "x" * 70_000) == "x" * 70_000
    assert recording.receiver.asked == []


def _in_child(queue, stays_s) -> None:
    began = time.monotonic()
    queue.put((lt.prompt("clerk", DEFAULT), time.monotonic() - began))
    for thread in threading.enumerate():
        if thread.name == "lightning-prompts":
            thread.join(stays_s)


@pytest.fixture
def child_says():
    """What a forked child gets, and after how many seconds."""
    context = multiprocessing.get_context("fork")

    def run(stays_s: float = 10.0) -> tuple[str, float]:
        queue = context.Queue()
        child = context.Process(target=_in_child, args=(queue, stays_s))
        child.start()
        said = queue.get(timeout=30)
        child.join(30)
        return said

    return run


def test_a_forked_child_knows_what_was_known_and_asks_for_itself(recording, child_says):
    recording.receiver.prompt = serves(1, "one")
    assert lt.prompt("clerk", DEFAULT) == "one"
    assert child_says()[0] == "one"
    assert len(recording.receiver.asked) == 2


def test_a_forked_child_waits_only_for_what_was_known_long_ago(recording, child_says, monkeypatch):
    recording.receiver.prompt = serves(1, "one")
    assert lt.prompt("clerk", DEFAULT) == "one"
    go_on = threading.Event()
    recording.receiver.prompt = lambda name, asked: (500, {"waited": go_on.wait(4)})
    text, took_s = child_says(stays_s=0.0)
    assert text == "one"
    assert took_s < 0.9  # before: a second, for what the parent had just asked for
    go_on.set()
    recording.receiver.prompt = serves(2, "two")
    an_hour_later(monkeypatch)
    assert child_says()[0] == "two"
