"""Whole processes against a daemon in every kind of trouble: each ended span arrives, and none of them twice."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections import Counter
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.delivery.spool import endpoint_folder

pytestmark = pytest.mark.process

PREAMBLE = """
import os, resource, signal, sys, time
import lightning_instrumentation as lt
from lightning_instrumentation.delivery import outbox, post, sender
outbox._AT_EXIT_S, post._CONNECT_TIMEOUT_S, post._ANSWER_TIMEOUT_S = 60.0, 30.0, 0.5
sender._PAUSE_S = (0.02, 0.1)
def work(number):
    lt.agent(f"call-{number}")(lambda: None)()
"""


def start(code: str, receiver, spool_dir: Path, *, stderr: int | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "LIGHTNING_ENDPOINT": receiver.url, "LIGHTNING_SPOOL_DIR": str(spool_dir)}
    return subprocess.Popen(
        [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        assert process.wait(120) == 0


def names(receiver) -> Counter[str]:
    return Counter(span.name.removeprefix("invoke_agent ") for span in receiver.spans("invoke_agent"))


def deliver_what_is_left(receiver, spool_dir: Path) -> None:
    """As any later process with the same endpoint does."""
    process = start("lt.init(); work('last'); lt.flush(30); time.sleep(0.5)", receiver, spool_dir)
    finish(process)
    assert list(endpoint_folder(spool_dir, receiver.url).iterdir()) == []


@pytest.mark.parametrize("daemon_is_up", [True, False])
def test_what_returned_before_a_kill_arrives(receiver, tmp_path, daemon_is_up):
    if not daemon_is_up:
        receiver.stop()
    returned = 0
    for life in range(3):
        process = start(
            f"""
            for number in range(100000):
                work(f"{life}-{{number}}")
                print(number, flush=True)
            """,
            receiver,
            tmp_path,
        )
        assert process.stdout is not None
        for _ in range(30 + 40 * life):
            process.stdout.readline()
        process.kill()
        said = [int(line) for line in process.stdout.read().splitlines() if line]
        last = max([29 + 40 * life, *said[:-1]])  # the last line may be cut off
        returned += last + 1
        assert process.wait(30) == -signal.SIGKILL
        expected = {f"call-{life}-{number}" for number in range(last + 1)}
        if not daemon_is_up:
            receiver.start()
        deliver_what_is_left(receiver, tmp_path)
        if not daemon_is_up:
            receiver.stop()
        assert expected <= set(names(receiver))
    assert all(count == 1 for name, count in names(receiver).items() if name != "call-last")


def test_a_forked_child_that_leaves_the_block_does_not_end_its_parents_rollout(receiver, tmp_path):
    process = start(
        """
        with lt.rollout("t", attempt_id="a"):
            child = os.fork()
            work("child" if child == 0 else "parent")
            if child:
                os.waitpid(child, 0)
                time.sleep(0.2)
        lt.flush(30)
        if child == 0:
            os._exit(0)
        """,
        receiver,
        tmp_path,
    )
    pid = process.pid
    finish(process)
    (root,) = receiver.spans("rollout")
    inside = receiver.spans("invoke_agent")
    assert root.resource["process.pid"] == pid
    assert root.end_ns > max(span.end_ns for span in inside)
    assert names(receiver) == {"call-child": 1, "call-parent": 1}
    numbers = {
        span.name: (span.attributes[semconv.SEQUENCE], span.attributes[semconv.SEQUENCE_NUMBER]) for span in inside
    }
    mine = (root.attributes[semconv.SEQUENCE], 2)
    assert numbers["invoke_agent call-parent"] == mine
    assert numbers["invoke_agent call-child"][0] != mine[0]
    assert numbers["invoke_agent call-child"][1] == 1
    assert root.attributes[semconv.SEQUENCE_STARTED] == 2


def test_eight_processes_and_a_daemon_that_does_everything_wrong(receiver, tmp_path):
    accept = receiver.decide([])
    reply = type(accept)
    troubles = [
        reply(status=500),
        reply(status=503, headers={"Retry-After": "0.2"}),
        reply(status=429, headers={"Retry-After": "0.1"}),
        reply(delay_s=1.0),  # longer than the client waits: it is stored, and the client does not learn of it
        reply(status=502),
    ]
    lock = threading.Lock()
    asked = [0]

    def decide(spans):
        with lock:
            asked[0] += 1
            number = asked[0]
        if len(spans) > 60:
            return reply(status=413)
        return accept if number % 2 else troubles[(number // 2) % len(troubles)]

    receiver.decide = decide
    processes = [start(f"for n in range(250): work(f'{p}-{{n}}')", receiver, tmp_path) for p in range(8)]
    finish(*processes)
    receiver.decide = lambda spans: accept
    deliver_what_is_left(receiver, tmp_path)
    expected = {f"call-{p}-{n}" for p in range(8) for n in range(250)} | {"call-last"}
    assert names(receiver) == dict.fromkeys(expected, 1)


def test_a_disk_that_fills_up_makes_spans_wait_in_memory_and_none_is_lost(receiver, tmp_path):
    receiver.stop()
    process = start(
        """
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
        for number in range(600): work(number)
        stats = lt.stats()
        print(stats.waiting, stats.dropped, stats.failed.get("spool-not-writable", 0) > 0, flush=True)
        lt.flush(60)
        print(lt.stats().waiting, flush=True)
        """,
        receiver,
        tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline().split() == ["600", "0", "True"]
    receiver.start()
    assert process.stdout.readline().split() == ["0"]
    finish(process)
    assert names(receiver) == {f"call-{number}": 1 for number in range(600)}


def test_spans_of_an_attempt_are_numbered_without_a_gap_in_every_thread(recording):
    with lt.rollout("t", attempt_id="numbered") as rollout:
        scopes = [threading.Thread(target=lambda: [step() for _ in range(20)]) for _ in range(4)]
        for thread in scopes:
            thread.start()
        for thread in scopes:
            thread.join()
    rollout.reward(1.0)
    spans = [span for span in recording.spans() if span.attributes.get(semconv.ATTEMPT_ID) == "numbered"]
    assert sorted(span.attributes[semconv.SEQUENCE_NUMBER] for span in spans) == list(range(1, 83))
    assert len({span.attributes[semconv.SEQUENCE] for span in spans}) == 1
    (root,) = recording.spans("rollout")
    assert root.attributes[semconv.SEQUENCE_STARTED] == 81


@lt.agent("step")
def step() -> None:
    pass


def test_a_program_that_ends_while_its_first_span_ends_keeps_that_span_and_says_nothing(receiver, tmp_path):
    code = """
    import threading
    starting, start_thread = threading.Event(), threading.Thread.start
    def slowly(thread):
        if thread.name == "lightning-sender":
            starting.set()
            time.sleep(0.3)
        start_thread(thread)
    threading.Thread.start = slowly
    lt.init()
    threading.Thread(target=work, args=(1,), daemon=True).start()
    starting.wait()
    """
    # Before: "Exception ignored in atexit callback", RuntimeError: cannot join thread before it is started
    process = start(code, receiver, tmp_path, stderr=subprocess.PIPE)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "")
    deliver_what_is_left(receiver, tmp_path)
    assert names(receiver)["call-1"] == 1
