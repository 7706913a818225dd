"""An attempt that is a command: what it is told, what it says, and that nothing of it is left."""

import json
import math
import shlex
import subprocess
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import lightning_instrumentation as lt
import psutil
import pytest
from lightning_instrumentation.zero_code.environ import beside_proxy

from lightning_trainer.rollouts.attempt import AttemptEnded, run_attempt
from lightning_trainer.rollouts.command import Command, CommandError
from lightning_trainer.rollouts.task_file import FileTask

pytestmark = pytest.mark.process

ENDPOINT = "http://127.0.0.1:9"
TASK = FileTask("t", {"id": "t", "question": "2+2?"})


@pytest.fixture(autouse=True)
def recording(tmp_path: Path) -> Iterator[None]:
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path)
    yield
    lt.shutdown(0)


def python(code: str, *arguments: str, **options) -> Command:
    return Command([sys.executable, "-c", code, *arguments], endpoint=ENDPOINT, **options)


def run(command: Command) -> AttemptEnded:
    return run_attempt(command, TASK, stage="train", step=1, group_id="g", mode="train", timeout_s=60.0)


def test_the_client_alone_can_run_programs():
    """What agents run in their own process needs no extra (`pip install lightning-trainer`)."""
    extras = ("fastapi", "httpx", "numpy", "psutil", "pydantic", "ray", "rich", "typer", "uvicorn", "xxhash")
    code = f"""
        import sys
        sys.modules.update(dict.fromkeys({extras}))
        from lightning_trainer.rollouts import Command, Runner
        from lightning_trainer.rollouts.task_file import FileTask
        command = Command([sys.executable, "-c", "print(0.5)"], endpoint="{ENDPOINT}")
        assert command(FileTask("t", {{}})) == 0.5
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        ("0.5", 0.5),
        ("first\\n1\\n\\n", 1.0),
        ('{"reward": 2}', 2.0),
        ('{"reward": null}', None),
        ('{"rewards": {"score": 1}}', None),
        ("no JSON at all", None),
        ("", None),
    ],
)
def test_the_last_line_is_the_reward_where_it_is_one(said: str, reward: float | None) -> None:
    ended = run(python(f"print('''{said}''')"))
    assert (ended.reward, ended.error) == (reward, None)


@pytest.mark.parametrize("said", ["true", '"good"', '{"reward": "good"}', '{"rewards": {"score": [1]}}', "[1]"])
def test_a_reward_that_is_no_number_is_refused_in_a_sentence(said: str) -> None:
    ended = run(python(f"print('''{said}''')"))
    assert ended.reward is None
    assert ended.error is not None
    assert "a reward in it must be a number" in ended.error


def test_named_rewards_are_recorded_beside_it(monkeypatch) -> None:
    given: list[tuple[float, str]] = []
    monkeypatch.setattr(lt, "reward", lambda value, name="reward": given.append((value, name)))
    run(python("""print('{"reward": 1, "rewards": {"score": 0.25, "format": null}}')"""))
    assert given == [(0.25, "score"), (1.0, "reward")]


def test_the_task_comes_by_standard_input() -> None:
    assert run(python("import json, sys; print(len(json.load(sys.stdin)['question']))")).reward == 4.0


def test_a_python_program_belongs_to_the_attempt_and_any_other_finds_its_url() -> None:
    code = """
import json, os
from lightning_instrumentation.scope import current
identity = current().identity
url = os.environ['LIGHTNING_ROLLOUT_URL']
assert identity.rollout_id == identity.attempt_id and identity.group_id == 'g' and identity.task_id == 't'
assert url == f'http://127.0.0.1:9/rollouts/{identity.rollout_id}/agents/helper/v1', url
assert os.environ['LIGHTNING_TASK_ID'] == 't' and os.environ['LIGHTNING_AGENT'] == 'helper'
"""
    ended = run(python(code, agent="helper"))
    assert ended.error is None


def test_a_rollout_of_the_programs_own_is_the_attempt(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    code = """
import lightning_instrumentation as lt
from lightning_instrumentation.scope import current
attempt = current().identity
assert (attempt.task_id, attempt.mode) == ("t", "train")
with lt.rollout("mine", mode="evaluate"):
    assert current().identity == attempt
    lt.reward(0.25, "inside")
"""
    assert run(python(code)).error is None
    lt.shutdown(0)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert written.count(b"lightning.rollout.root") == 1
    assert b"evaluate inside" in written


LAUNCHER = str(Path(sysconfig.get_path("scripts")) / "lightning-trainer")


@pytest.mark.parametrize("options", [[], ["--task", "mine", "--mode", "record"]], ids=["plain", "with a task"])
def test_a_program_under_the_launcher_belongs_to_the_attempt(options: list[str], tmp_path: Path) -> None:
    code = f"""
from lightning_instrumentation.scope import current
identity = current().identity
assert (identity.task_id, identity.group_id, identity.mode) == ("t", "g", "train"), identity
open({str(tmp_path / "seen")!r}, "w").write(identity.attempt_id)
"""
    command = [LAUNCHER, "run", "--agent", "a", *options, "--", sys.executable, "-c", code]
    script = f"{shlex.join(command)} 2> {tmp_path / 'said'}"
    ended = run(Command(["sh", "-c", script], endpoint=ENDPOINT))
    assert ended.error is None
    said, attempt = (tmp_path / "said").read_text(), (tmp_path / "seen").read_text()
    assert said == (
        f"lightning-trainer: --task and --mode do not count: the program is inside attempt {attempt} of a runner or of "
        "another `lightning-trainer run`, and belongs to it\n"
        if options
        else ""
    )


def test_its_url_says_that_no_texts_are_recorded(monkeypatch) -> None:
    monkeypatch.setenv("LIGHTNING_CAPTURE_CONTENT", "0")
    code = "import os; assert os.environ['LIGHTNING_ROLLOUT_URL'].endswith('/with/capture_content=0/v1')"
    assert run(python(code)).error is None


@pytest.mark.parametrize(
    ("exported", "beside"),
    [
        ({}, "127.0.0.1,daemon"),
        ({"NO_PROXY": "localhost, 127.0.0.1"}, "localhost,127.0.0.1,daemon"),
        ({"no_proxy": ".corp", "NO_PROXY": "old"}, ".corp,127.0.0.1,daemon"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_the_daemon_and_this_machine_are_reached_without_the_environments_proxy(exported, beside) -> None:
    assert beside_proxy(exported, "http://daemon:8321") == {"no_proxy": beside, "NO_PROXY": beside}


def test_a_program_finds_what_the_proxy_is_not_for(monkeypatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    code = "import os; assert os.environ['no_proxy'] == os.environ['NO_PROXY'] == '127.0.0.1'"
    assert run(python(code)).error is None


def test_a_program_that_fails_says_how() -> None:
    ended = run(python("import sys; print(1); sys.exit('the tool is broken')"))
    assert (ended.reward, ended.error) == (None, "CommandError: exit status 1: the tool is broken")


def test_what_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])
open(sys.argv[1], 'w').write(f'{os.getpid()} {child.pid}')
time.sleep(60)
"""
    began = time.monotonic()
    ended = run(python(code, str(pids), timeout_s=1.5))
    assert ended.error == "TimeoutError: the command did not end within 1.5 s"
    assert time.monotonic() - began < 20
    for pid in map(int, pids.read_text().split()):
        _gone(pid)


def test_what_a_program_leaves_behind_ends_with_it() -> None:
    code = """
import subprocess, sys
quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], **quiet).pid)
"""
    ended = run(python(code))
    assert ended.reward is not None
    _gone(int(ended.reward))


def test_what_holds_its_output_open_after_its_end_does_not_hold_up_the_attempt() -> None:
    code = """
import subprocess, sys
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]).pid)
"""
    ended = run(python(code, timeout_s=30.0))
    assert ended.error is None
    assert ended.reward is not None
    _gone(int(ended.reward))


def test_what_takes_too_long_is_killed_with_what_it_started_in_a_session_of_its_own(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)
open(sys.argv[1], 'w').write(str(child.pid))
time.sleep(60)
"""
    ended = run(python(code, str(pids), timeout_s=1.5))
    assert ended.error == "TimeoutError: the command did not end within 1.5 s"
    _gone(int(pids.read_text()))


def test_a_limit_of_months_or_none_at_all_is_no_error() -> None:
    assert run(python("print(1)", timeout_s=1e8)).reward == 1.0
    assert run(python("print(1)", timeout_s=math.inf)).reward == 1.0


def test_what_a_shell_writes_to_its_output_by_name_comes_before_what_follows() -> None:
    script = "echo a log > /dev/stdout; echo 2; echo a longer log > /dev/stderr"
    assert run(Command(["sh", "-c", script], endpoint=ENDPOINT)).reward == 2.0


def test_outside_a_rollout_it_runs_alone() -> None:
    code = "from lightning_instrumentation.scope import current; assert current().identity is None; print(3)"
    assert python(code)(TASK) == 3.0
    with pytest.raises(CommandError, match="exit status 7"):
        python("raise SystemExit(7)")(TASK)


def test_a_large_task_and_much_output_do_not_block() -> None:
    task = FileTask("big", {"text": "x" * 1_000_000})
    code = (
        "import json, sys; text = json.load(sys.stdin)['text']; print(text); sys.stderr.write(text); print(len(text))"
    )
    assert json.dumps(python(code)(task)) == "1000000.0"


def _gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.05)
