"""An environment behind a pipe: what it says is checked, and each way to break is a failure with a name."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lightning_trainer.environments import Action, Task, memory
from lightning_trainer.environments.errors import (
    EnvironmentDiedError,
    EnvironmentNonsenseError,
    EnvironmentOutOfMemoryError,
    EnvironmentRaisedError,
    EnvironmentTimeoutError,
)
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.pool import EnvironmentPool
from lightning_trainer.environments.worker.process import EnvironmentProcess

pytestmark = pytest.mark.process

WORLDS = Path(__file__).with_name("worlds.py")
LIMITS = Limits(start_timeout_s=30, reset_timeout_s=10, step_timeout_s=2.5, memory_mib=300, message_kib=64)


def started(what: str) -> EnvironmentProcess:
    return EnvironmentProcess(launch_of(EnvironmentSpec.parse(f"{WORLDS}:{what}")), LIMITS)


def task(**fields: object) -> Task:
    return Task("world", "1", **fields)  # pyright: ignore[reportArgumentType]


def gone(pid: int, within_s: float = 10.0) -> bool:
    give_up = time.monotonic() + within_s
    while time.monotonic() < give_up:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_a_task_starts_the_same_world_in_another_process() -> None:
    said = []
    for _ in range(2):
        process = started("Guess")
        session = Session(process, task(seed=7))
        said.append([session.observation.text, *(session.say(str(guess)) for guess in range(1, 4))])
        process.close()
    assert said[0] == said[1]


def test_what_is_typed_arrives_typed() -> None:
    process = started("Adder")
    assert (process.version, process.sizes) == ("2", {"train": 3, "held-out": 2})
    session = Session(process, task())
    assert session.tools[0].name == "add"
    assert session.observation.instructions == "Use the tool."
    assert session.call("add", {"a": 2, "b": 3}) == "5"
    assert (session.observation.state, session.reward) == ("added", None)
    assert session.say("5") == "right"
    assert (session.done, session.reward, session.turns) == (True, 1.0, 2)
    with pytest.raises(RuntimeError, match="is done"):
        session.say("again")
    process.close()


def test_a_picture_arrives_and_what_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(
        "from lightning_trainer.environments import Observation\n\nclass World:\n"
        "    def reset(self, task):\n        return Observation('x', images=(('data:image/png;base64,QQ==', 'http://x')[task.seed],))\n"
        "    def step(self, action):\n        return 'y', 0.0, True\n"
    )
    process = EnvironmentProcess(launch_of(EnvironmentSpec.parse(f"{tmp_path}/world.py:World")), LIMITS)
    assert process.reset(Task("w", "1", seed=0)).images == ("data:image/png;base64,QQ==",)
    with pytest.raises(EnvironmentNonsenseError, match="the picture 'http://x' is not a data: URL of an image"):
        process.reset(Task("w", "1", seed=1))
    process.close()


def test_a_variant_that_is_a_file_is_found_wherever_the_process_starts(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pages.py").write_text("")
    for name, variant in (("web:pages.py", str(tmp_path / "pages.py")), ("web:nowhere.py", "nowhere.py")):
        launch = launch_of(EnvironmentSpec.parse(name), python=sys.executable)
        assert (launch.variant, launch.label) == (variant, name)


def test_other_code_is_another_version(tmp_path: Path) -> None:
    versions = set()
    for line in ("", "# changed\n"):
        (tmp_path / "world.py").write_text(line + WORLDS.read_text())
        versions.add(launch_of(EnvironmentSpec.parse(f"{tmp_path}/world.py:Guess")).digest)
    assert len(versions) == 2


@pytest.mark.parametrize(
    ("how", "kind", "sentence"),
    [
        ("hangs", EnvironmentTimeoutError, "did not answer step 2 within 2.5 s; it was killed"),
        ("spins", EnvironmentTimeoutError, "did not answer step 2 within 2.5 s; it was killed"),
        ("dies", EnvironmentDiedError, "died of SIGSEGV in step 2"),
        ("exits", EnvironmentDiedError, "ended with status 3 in step 2: this is not an answer"),
        ("leaves", EnvironmentRaisedError, r"failed in step 2: SystemExit: I go \(worlds.py, line \d+\)"),
        ("raises", EnvironmentRaisedError, r"ZeroDivisionError: division by zero \(worlds.py, line \d+\)"),
        ("says nothing", EnvironmentNonsenseError, r"step\(\) returned None; it must be three"),
        ("says a set", EnvironmentNonsenseError, r"observation is \{1, 2\}; it must be text or an Observation"),
        ("gives nan", EnvironmentNonsenseError, "the reward is nan; it must be a number, or None"),
        ("gives text", EnvironmentNonsenseError, "the reward is '1.0'; it must be a number"),
        ("may be done", EnvironmentNonsenseError, "done is 'maybe'; it must be True or False"),
        ("talks", EnvironmentNonsenseError, "answered step 2 with more than 64 KiB; raise message_kib"),
        ("writes into the pipe", EnvironmentNonsenseError, "answered step 2"),
        ("leaks", EnvironmentOutOfMemoryError, "in step 2; it was killed"),
        ("leaks in a child", EnvironmentOutOfMemoryError, "memory_mib is 300, in step 2; it was killed"),
    ],
)
def test_each_way_to_break_has_a_name_and_leaves_no_process(how: str, kind: type[Exception], sentence: str) -> None:
    process = started(f"Broken:{how}")
    pids = [process.pid]
    Session(process, task()).say("first")
    process.reset(task())
    process.step(Action("first"))
    watch = threading.Timer(1.0, lambda: pids.extend(child.pid for child in psutil.Process(process.pid).children()))
    if "child" in how:
        watch.start()
    with pytest.raises(kind, match=sentence):
        process.step(Action("second"))
    watch.cancel()
    if kind is EnvironmentRaisedError:  # its code raised, its process goes on with a new object
        assert process.reset(task()).text in ("begin",)
        process.close()
    assert not process.alive
    assert all(gone(pid) for pid in pids)


@pytest.mark.parametrize(("how", "sentence"), [("dies", "died of SIGSEGV in step 2"), ("exits", "ended with status 3")])
def test_how_one_ended_is_known_without_waitid(monkeypatch, how: str, sentence: str) -> None:
    """Which macOS has from Python 3.13 on. Before, no environment started there."""
    monkeypatch.delattr(os, "waitid")
    process = started(f"Broken:{how}")
    process.reset(task())
    process.step(Action("first"))
    assert process.alive
    with pytest.raises(EnvironmentDiedError, match=sentence):
        process.step(Action("second"))
    assert not process.alive
    assert gone(process.pid)
    other = started("Guess")
    other.kill()
    assert gone(other.pid)


def test_one_that_cannot_start_says_why() -> None:
    with pytest.raises(EnvironmentRaisedError, match="failed in start: RuntimeError: no such game"):
        started("Broken:start")
    with pytest.raises(EnvironmentRaisedError, match="has no attribute 'Nobody'"):
        started("Nobody")


def test_an_action_that_is_too_long_is_not_sent() -> None:
    process = started("Guess")
    process.reset(task())
    with pytest.raises(EnvironmentNonsenseError, match="the action has 97 KiB and message_kib is 64"):
        process.step(Action("x" * 100_000))
    assert not process.alive


def test_a_pool_replaces_what_has_failed() -> None:
    with EnvironmentPool(launch_of(EnvironmentSpec.parse(f"{WORLDS}:Broken:exits")), LIMITS, size=1) as pool:
        pids = set()
        for _ in range(3):
            with pool.lease() as process:
                pids.add(process.pid)
                session = Session(process, task())
                session.say("first")
                with pytest.raises(EnvironmentDiedError):
                    session.say("second")
        assert len(pids) == 3


@pytest.mark.parametrize("how", ["well", "raises", "hangs"])
def test_an_environment_is_closed_when_it_has_raised_and_when_its_pool_ends(how: str, tmp_path: Path, caplog) -> None:
    notes = tmp_path / "notes"
    launch = launch_of(EnvironmentSpec.parse(f"{WORLDS}:Closes?path={notes}&how={how}"))
    with EnvironmentPool(launch, LIMITS, size=1) as pool, pool.lease() as process:
        session = Session(process, task())
        if how == "well":
            with pytest.raises(EnvironmentRaisedError, match="it broke"):
                session.say("break")
            Session(process, task())
            assert notes.read_text().split() == ["made", "closed", "made"]
    assert notes.read_text().split() == ["made", "closed"] * (2 if how == "well" else 1)
    assert gone(process.pid)
    said = {"well": "", "raises": "it cannot be closed", "hangs": "did not answer close within"}[how]
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


def test_an_environment_that_is_playing_when_the_pool_ends_is_not_waited_for(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    pool = EnvironmentPool(launch_of(EnvironmentSpec.parse(f"{WORLDS}:Closes?path={notes}&how=hangs")), LIMITS, size=1)
    with pool.lease() as process:
        began = time.monotonic()
        pool.close()
        assert time.monotonic() - began < 2
        assert not process.alive


def test_keys_and_tokens_do_not_reach_it(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    (tmp_path / "world.py").write_text(
        "import os\n"
        "class Curious:\n"
        "    def reset(self, task): return str(dict(os.environ))\n"
        "    def step(self, action): return '', 0, True\n"
    )
    process = EnvironmentProcess(launch_of(EnvironmentSpec.parse(f"{tmp_path}/world.py:Curious")), LIMITS)
    assert "sk-of-the-user" not in process.reset(task()).text
    process.close()


@pytest.mark.parametrize("how", ["spins", "hangs"])
def test_it_dies_with_us_whatever_it_is_doing(how: str, tmp_path: Path) -> None:
    """``kill -9`` of our process in the middle of a step."""
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(WORLDS.parent)!r})
from lightning_trainer.environments import Action, Task, memory
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import launch_of
from lightning_trainer.environments.registry import EnvironmentSpec
from lightning_trainer.environments.worker.process import EnvironmentProcess
process = EnvironmentProcess(launch_of(EnvironmentSpec.parse({f"{WORLDS}:Broken:{how}"!r})), Limits(step_timeout_s=600))
process.reset(Task("w", "1"))
process.step(Action("1"))
print(process.pid, flush=True)
process.step(Action("2"))
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as ours:
        assert ours.stdout is not None
        pid = int(ours.stdout.readline())
        time.sleep(0.3)
        assert psutil.pid_exists(pid)
        os.kill(ours.pid, signal.SIGKILL)
    assert gone(pid)


def test_what_it_started_in_a_session_of_its_own_is_killed_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    process = started(f"Broken:starts a child?pids={pids}")
    process.reset(task())
    process.step(Action("1"))
    with pytest.raises(EnvironmentTimeoutError):
        process.step(Action("2"))
    assert all(gone(int(pid)) for pid in pids.read_text().split())


def test_sixty_four_at_once(tmp_path: Path) -> None:
    """As many attempts as a runner makes at once, each with a process of its own, and none left afterwards."""
    pool = EnvironmentPool(launch_of(EnvironmentSpec.parse(f"{WORLDS}:Guess")), Limits(), size=64)
    there = threading.Barrier(64)
    pids: set[int] = set()
    rewards: list[float | None] = []

    def attempt(seed: int) -> None:
        with pool.lease() as process:
            pids.add(process.pid)
            there.wait(120)
            session = Session(process, task(seed=seed))
            low, high = 1, 20
            while not session.done:
                guess = (low + high) // 2
                said = session.say(str(guess))
                low, high = (guess + 1, high) if said == "higher" else (low, guess - 1)
            rewards.append(session.reward)

    threads = [threading.Thread(target=attempt, args=(seed,)) for seed in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert rewards == [1.0] * 64
    assert len(pids) == 64
    pool.close()
    assert all(gone(pid) for pid in pids)


# -- memory ----------------------------------------------------------------------------------------------------------


FAMILY = textwrap.dedent(
    """
    import subprocess, sys, threading
    child = "held = bytearray(40 << 20); print('ready', flush=True); input()"
    grandparent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    def start():
        global started
        started = subprocess.Popen([sys.executable, "-c", grandparent])
        started.wait()
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    """
)


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A process whose thread has started one that has started one, which holds 40 MiB."""
    command = [sys.executable, "-c", FAMILY]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.stdin.close()


@pytest.mark.parametrize("listed", [True, False])
def test_all_that_a_process_started_counts(family, monkeypatch, listed):
    if listed and not memory._LISTED:
        pytest.skip("this kernel does not list a thread's children")
    monkeypatch.setattr(memory, "_LISTED", listed)
    below = psutil.Process(family.pid).children(recursive=True)
    assert len(below) == 2
    (child,) = memory.children_of(family.pid)
    assert memory.children_of(child) == [one.pid for one in below if one.pid != child]
    held = memory.resident_bytes(family.pid)
    alone = psutil.Process(family.pid).memory_info().rss
    assert held > alone + (40 << 20)


def test_a_process_that_has_ended_holds_nothing():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert (memory.resident_bytes(process.pid), memory.children_of(process.pid)) == (0, [])


def test_other_processes_are_not_read(family, monkeypatch):
    if not memory._LISTED:
        pytest.skip("this kernel does not list a thread's children")
    listed, own = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: listed.append(str(path)) or own(path))
    memory.resident_bytes(family.pid)
    assert "/proc" not in listed
    assert len(listed) == 3
