"""Code that nobody has read: whatever it tries is a failed action with a sentence, and nothing outside has changed."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lightning_trainer.environments import Task
from lightning_trainer.environments.adapters.code_actions import CodeActions
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.sandbox import Sandbox, SandboxLimits, SandboxUnavailableError, jail
from lightning_trainer.environments.session import InProcess, Playable, Session
from lightning_trainer.environments.worker.process import EnvironmentProcess


def usable() -> str | None:
    try:
        Sandbox().close()
    except SandboxUnavailableError as error:
        return str(error)
    return None


UNUSABLE = usable()
pytestmark = [pytest.mark.process, pytest.mark.skipif(UNUSABLE is not None, reason=str(UNUSABLE))]


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(SandboxLimits(seconds=4, memory_mib=200)) as sandbox:
        yield sandbox


def test_it_is_an_interpreter_whose_variables_stay(sandbox: Sandbox) -> None:
    assert sandbox.run("import math\nx = 6 * 7\nprint('x is', x)").output == "x is 42\n"
    ran = sandbox.run("math.floor(x / 5)")
    assert (ran.output, ran.error, ran.value) == ("8\n", None, 8)
    assert sandbox.run("1 / 0").error == "ZeroDivisionError: division by zero (line 1)"
    assert sandbox.run("def").error == "SyntaxError: invalid syntax (<code>, line 1)"
    assert sandbox.run("x").value == 42


_HOLDS_AND_WRITES = """
import os, time
def write():
    while True:
        time.sleep(0.002)
        for i in range(3, 30):
            try: os.write(i, b'x')
            except OSError: pass
def hold():
    x = b'x' * (100 << 20)
    time.sleep(9)
for work in (write, write, write, hold, hold, hold):
    if os.fork() == 0: work()
time.sleep(1.5)
"""
"""What reaches its answer leaves no pause in which to look at its memory."""


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("import os\nwhile True: os.fork()", "BlockingIOError: [Errno 11] Resource temporarily unavailable (line 2)"),
        ("x = bytearray(10 << 30)", "MemoryError: the code asked for more memory than it may have"),
        ("open('/usr/bin/x', 'w')", "OSError: [Errno 30] Read-only file system: '/usr/bin/x'"),
        ("open('/x', 'w')", "OSError: [Errno 30] Read-only file system: '/x'"),
        ("open('/etc/passwd')", "FileNotFoundError"),
        (f"open({__file__!r})", "FileNotFoundError"),
        ("open('/proc/1/environ')", "PermissionError"),
        ("import socket; socket.create_connection(('1.1.1.1', 80))", "Operation not permitted"),
        ("import urllib.request; urllib.request.urlopen('http://127.0.0.1')", "urlopen error"),
        ("import os; os.kill(OUR_PID, 9)", "ProcessLookupError: [Errno 3] No such process"),
        ("import os; os.kill(-1, 9)", "ProcessLookupError: [Errno 3] No such process"),
        ("import os; os.setuid(0)", "PermissionError"),
        ("import os; os._exit(0)", "the code ended its interpreter; its variables are gone"),
        ("import sys; sys.exit(1)", "SystemExit: 1"),
        ("import os; os.mknod('/work/sda', 0o60666, 0x800)", "PermissionError"),
        ("f = open('big', 'wb')\nwhile True: f.write(bytes(1 << 20))", "File too large"),
        ("for i in range(9999): open(f'{i}', 'w').close()", "No space left on device"),
        ("f = open('/dev/sda')", "FileNotFoundError"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("import ctypes; ctypes.string_at(0)", "the code ended its interpreter"),
        (
            "import threading, time\nfor i in range(99): threading.Thread(target=time.sleep, args=(9,)).start()",
            "can't start new thread (line 2); the code left threads behind, which were ended",
        ),
        (
            "import os, time\nfor i in range(9):\n    if os.fork() == 0:\n        x = b'x' * (100 << 20)\n"
            "        time.sleep(9)\ntime.sleep(9)",
            "the code and its processes held more than 200 MiB and were stopped",
        ),
        (_HOLDS_AND_WRITES, "the code and its processes held more than 200 MiB and were stopped"),
        (
            "import os\nfor i in range(3, 30):\n    try: os.write(i, b'x\\n')\n    except OSError: pass",
            "the code wrote where it may not",
        ),
    ],
)
def test_each_way_out_is_a_failed_action_with_a_sentence(sandbox: Sandbox, code: str, sentence: str) -> None:
    ran = sandbox.run(code.replace("OUR_PID", str(os.getpid())))
    assert ran.error is not None
    assert sentence in ran.error
    assert sandbox.run("1 + 1").value == 2


@pytest.mark.parametrize("code", ["while True: pass", "import time; time.sleep(60)"])
def test_code_that_does_not_end_is_stopped_at_the_limit(code: str) -> None:
    with Sandbox(SandboxLimits(seconds=1)) as hurried:
        assert hurried.run(code).error == "the code took longer than 1 s and was stopped; its variables are gone"
        assert hurried.run("1 + 1").value == 2


def test_it_sees_nothing_of_ours(sandbox: Sandbox, monkeypatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")
    with Sandbox() as fresh:
        seen = fresh.run("import os; [sorted(os.environ), os.listdir('/work'), os.getppid(), os.listdir('/home')]")
        assert seen.error is not None  # there is no /home
        variables, files, parent = fresh.run("[sorted(os.environ), os.listdir('/work'), os.getppid()]").value
        processes = fresh.run("[name for name in os.listdir('/proc') if name.isdecimal()]").value
        interfaces = fresh.run("[line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]]").value
    assert variables == ["HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE"]
    assert (files, parent, processes, interfaces) == ([], 0, ["1"], ["lo"])


def test_signals_to_its_group_stay_inside(sandbox: Sandbox) -> None:
    code = "import os, signal, time\nif os.fork() == 0: time.sleep(60)\nos.kill(0, signal.SIGKILL)"
    assert sandbox.run(code).error is None
    assert sandbox.run("1 + 1").value == 2


def test_code_does_not_outlive_a_killed_owner(tmp_path: Path) -> None:
    program = tmp_path / "owner.py"
    program.write_text(
        "from lightning_trainer.environments.sandbox import Sandbox, SandboxLimits\n"
        "sandbox = Sandbox(SandboxLimits(seconds=60))\n"
        "print('ready', flush=True)\n"
        "sandbox.run('import time; time.sleep(60)')\n"
    )
    owner = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    inside = psutil.Process(owner.pid).children(recursive=True)
    assert len(inside) >= 2, "the one that waits, and the one that is locked in"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    _, alive = psutil.wait_procs(inside, timeout=10)
    for process in alive:
        process.kill()
    assert not alive


@pytest.mark.parametrize("user", [0, 65534])
def test_a_file_system_mounted_below_a_system_folder_is_read_only_too(user: int) -> None:
    """Before: code could write to it. As nobody, all that is mounted outside is locked."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or not Path(python).exists() or not all(map(shutil.which, ("unshare", "setpriv"))):
        pytest.skip("this test mounts file systems, in a namespace of its own, and becomes another user")
    mounts = """
mount -t tmpfs -o mode=1777 none /usr/src
mkdir "/usr/src/with space" && mount -t tmpfs -o mode=1777,nodev,noexec,nodiratime none "/usr/src/with space"
mount -t tmpfs -o mode=1777 none /usr/local && mkdir /usr/local/hidden
mount -t tmpfs -o mode=1777 none /usr/local/hidden && mount -t tmpfs -o mode=1777,nodev none /usr/local
exec "$@"
"""
    code = """
enter([], {"memory_mib": 500, "processes": 16, "cpu_s": 20, "disk_mib": 16})
for folder in ("/usr/src", "/usr/src/with space", "/usr/local"):
    try: print(open(folder + "/written", "w"))
    except OSError as error: print(error.strerror, bool(os.statvfs(folder).f_flag & os.ST_NOSUID))
"""
    # As text, because nobody may not be able to read this checkout.
    program = Path(jail.__file__).read_text() + code
    become = ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", mounts, "sh", *become, python, "-c", program],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("Read-only file system True\n" * 3, "")


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.memfd_create('x')",
        "import ctypes; libc = ctypes.CDLL(None); assert libc.msgget(0, 0o600) >= 0, 'Operation not permitted'",
        "import ctypes; libc = ctypes.CDLL(None); assert libc.semget(0, 9, 0o600) >= 0, 'Operation not permitted'",
        "import ctypes; libc = ctypes.CDLL(None); assert libc.shmget(0, 9, 0o600) >= 0, 'Operation not permitted'",
    ],
)
def test_no_memory_is_held_where_no_limit_sees_it(sandbox: Sandbox, code: str) -> None:
    assert "Operation not permitted" in (sandbox.run(code).error or "")


def test_it_has_no_rights_and_can_get_none(sandbox: Sandbox) -> None:
    status = dict(line.split(":\t") for line in sandbox.run("open('/proc/self/status').read()").value.splitlines())
    assert {status[f"Cap{kind}"] for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
[libc.unshare(0x10000000), libc.mount(b"none", b"/work", b"tmpfs", 0, None), libc.setns(0, 0), libc.ptrace(0, 0, 0, 0)]
"""
    assert sandbox.run(code).value == [-1, -1, -1, -1]


def test_what_the_code_started_ends_with_the_code(sandbox: Sandbox) -> None:
    sandbox.run("import subprocess; subprocess.Popen(['/bin/sleep', '60'])")
    assert sandbox.run("import os; [name for name in os.listdir('/proc') if name.isdecimal()]").value == ["1"]


def test_output_is_cut(sandbox: Sandbox) -> None:
    ran = sandbox.run("print('a' * 10 ** 8)")
    assert ran.output.endswith("a\n[the rest is cut]")
    assert len(ran.output) < 20_000


def test_a_sandbox_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    sandbox = Sandbox(SandboxLimits(seconds=1))
    sandbox.run("import os, time\nfor i in range(5):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(60)")
    sandbox.close()
    give_up = time.monotonic() + 5
    while (left := {child.pid for child in psutil.Process().children(recursive=True)} - before) and (
        time.monotonic() < give_up
    ):
        time.sleep(0.1)
    assert not left


def test_a_closed_sandbox_leaves_nothing_for_another_process_to_reap() -> None:
    """The first process of many containers reaps orphans late or never: whoever waits for that waits for nothing."""
    code = """
import psutil
from lightning_trainer.environments.sandbox import Sandbox
for _ in range(3):
    sandbox = Sandbox()
    sandbox.run("1 + 1")
    inside = psutil.Process().children(recursive=True)
    sandbox.close()
    print(len(inside), [process.status() for process in inside if psutil.pid_exists(process.pid)])
"""
    reaps_nothing = (
        "import ctypes, subprocess, sys\n"
        "assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans below come to it\n"
        f"sys.exit(subprocess.run([sys.executable, '-c', {code!r}]).returncode)"
    )
    done = subprocess.run([sys.executable, "-c", reaps_nothing], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("2 []\n" * 3, "")


def test_an_unprivileged_user_has_the_same_walls() -> None:
    """As nobody, with the system's interpreter: a user namespace is then the way in."""
    python = "/usr/bin/python3"
    if os.geteuid() != 0 or not Path(python).exists():
        pytest.skip("this test becomes another user")
    code = """
from lightning_trainer.environments.sandbox import Sandbox
with Sandbox() as sandbox:
    print(sandbox.run("import os; os.getuid()"))
    for code in ("open('/etc/passwd')", "open('/usr/x', 'w')", "import os; os.kill(-1, 9)", "x = bytearray(10 << 30)",
                 "import socket; socket.socket()", "import os\\nwhile True: os.fork()", "import os; os.kill(0, 9)"):
        print(sandbox.run(code).error)
    print(sandbox.run("1 + 1").value)
"""
    root = Path(__file__).parents[3]
    path = os.pathsep.join([str(root), *(entry for entry in sys.path if entry.endswith("site-packages"))])
    done = subprocess.run(
        [python, "-c", code], user=65534, group=65534, extra_groups=[], env={"PYTHONPATH": path}, cwd="/",
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    if "ModuleNotFoundError" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip("the packages are not for everybody to read")
    assert done.returncode == 0, done.stderr
    _, *errors, last = done.stdout.splitlines()
    assert last == "2"
    wanted = [
        "FileNotFoundError",
        "Read-only",
        "ProcessLookupError",
        "MemoryError",
        "PermissionError",
        "BlockingIOError",
        "None",
    ]
    assert [name for name, said in zip(wanted, errors, strict=True) if name not in said] == []


def test_where_the_walls_cannot_be_built_nothing_is_run(monkeypatch) -> None:
    from lightning_trainer.environments.sandbox import sandbox as module

    enters, refused = 'jail.enter(start["prefixes"], start["limits"])', 'raise OSError(1, "unshare: not permitted")'
    whole = Path(module.__file__).with_name("inmate.py").read_text()
    assert enters in whole
    monkeypatch.setattr(module, "_INMATE", _written(whole.replace(enters, refused)))
    with pytest.raises(SandboxUnavailableError, match=r"cannot be run safely here, so it is not run: .*unshare"):
        Sandbox()


def _written(text: str) -> Path:
    from lightning_trainer.environments.sandbox import sandbox as module

    folder = Path(tempfile.mkdtemp())
    (folder / "jail.py").write_text(Path(module.__file__).with_name("jail.py").read_text())
    (folder / "inmate.py").write_text(text)
    return folder / "inmate.py"


def test_hidden_tests_score_what_the_code_defined() -> None:
    environment = CodeActions(turns=2)
    fields = {"question": "f", "tests": [{"call": "f(3)", "expected": 9}, {"call": "f(0)", "expected": 1}]}
    session = Session(InProcess(environment), Task("code", "1", name="t", fields=fields))
    assert session.say("```python\nprint('hi')\n```") == "hi"
    assert session.say("Now:\n```python\ndef f(n): return n * n\n```") == "(it printed nothing)\n1 of 2 tests passed."
    assert (session.done, session.reward) == (True, 0.5)
    # Nothing of the attempt before is there.
    session = Session(InProcess(environment), Task("code", "1", name="t", fields=fields))
    assert "0 of 2" in session.say("I am done.")
    environment.close()


@pytest.mark.parametrize("split", ["train", "held-out"])
def test_tasks_by_seed_can_be_solved(split: str) -> None:
    environment = CodeActions(turns=1)
    solved = 0
    for seed in range(6):
        session = Session(InProcess(environment), Task("code", "1", split, seed))
        words = session.observation.text
        numbers = [int(word) for word in re.findall(r"\d+", words)]
        if "whichever is larger" in words:
            session.say(f"```python\ndef f(n): return max(n, {numbers[-1]})\n```")
        elif "times n plus" in words:
            session.say(f"```python\ndef f(n): return {numbers[0]} * n + {numbers[1]}\n```")
        elif "digits" in words:
            session.say(f"```python\ndef f(n): return sum(map(int, str(n))) + {numbers[-1]}\n```")
        elif "remainder" in words:
            session.say(f"```python\ndef f(n): return n * {numbers[0]} % {numbers[1]}\n```")
        else:
            session.say(f"```python\ndef f(n): return sum(i for i in range(1, n + 1) if i % {numbers[1]} == 0)\n```")
        solved += session.reward == 1.0
    assert solved == 6
    environment.close()


def scored(environment: Playable, code: str, *calls: tuple[str, object]) -> tuple[str, float | None]:
    """What an answer of one piece of code is told at the end, and what it is worth."""
    tests = [{"call": call, "expected": expected} for call, expected in calls]
    session = Session(environment, Task("code", "2", name="t", fields={"question": "f", "tests": tests}))
    return session.say(f"```python\n{code}\n```").splitlines()[-1], session.reward


def test_a_test_that_loses_the_interpreter_fails_alone() -> None:
    environment = CodeActions(turns=2, seconds=1, tests_seconds=60)
    code = "import os\ndef f(n):\n    while n == 1: pass\n    return os._exit(0) if n == 3 else n + k"
    tests = [{"call": f"f({n})", "expected": n + 10} for n in range(5)]
    session = Session(InProcess(environment), Task("code", "2", name="t", fields={"question": "f", "tests": tests}))
    session.say("```python\nk = 10\n```")
    assert "3 of 5 tests passed." in session.say(f"```python\n{code}\n```")
    assert session.reward == 0.6
    environment.close()


def test_what_was_lost_before_the_tests_stays_lost() -> None:
    environment = CodeActions(turns=2, seconds=1)
    session = Session(
        InProcess(environment),
        Task("code", "2", name="t", fields={"question": "f", "tests": [{"call": "f(1)", "expected": 1}] * 2}),
    )
    session.say("```python\ndef f(n): return n\nwhile True: pass\n```")
    assert "0 of 2 tests passed." in session.say("```python\nimport os\n```")
    environment.close()


def test_the_tests_have_one_time_for_all_and_what_is_not_reached_did_not_pass() -> None:
    environment = CodeActions(turns=1, seconds=3, tests_seconds=3.3)
    slow = "import time\ndef f(n):\n    time.sleep(1.2)\n    return n"
    said, reward = scored(InProcess(environment), slow, *((f"f({n})", n) for n in range(5)))
    assert said == "2 of 5 tests passed; 3 had not ended when the time of all tests (3.3 s) was over."
    assert reward == 0.4
    environment.close()


@pytest.mark.parametrize(
    ("code", "expected", "reward"),
    [
        ("x = 1", None, 0.0),
        ("def f(): return None", None, 1.0),
        ("def f(): return [0.1 + 0.2, {'a': 1.1 * 3}]", [0.3, {"a": 3.3}], 1.0),
        ("def f(): return [1, {'a': 1}]", [True, {"a": 1}], 0.0),
        ("def f(): return [1, 2]", [1], 0.0),
        ("def f(): return 10 ** 400", 1.5, 0.0),
    ],
)
def test_a_value_is_compared_with_what_is_expected(code: str, expected: object, reward: float) -> None:
    environment = CodeActions(turns=1)
    assert scored(InProcess(environment), code, ("f()", expected))[1] == reward
    environment.close()


@pytest.mark.parametrize(("options", "least"), [("", 18.0), ("?seconds=8", 48.0), ("?seconds=8&tests_seconds=9", 17.0)])
def test_a_step_may_take_as_long_as_the_code_and_its_tests(options: str, least: float) -> None:
    launch = launch_of(EnvironmentSpec.parse(f"code{options}"))
    assert least < launch.step_timeout_s < least + 20


def test_a_slow_answer_is_scored_behind_a_pipe_whatever_the_limit_of_other_environments() -> None:
    launch = launch_of(EnvironmentSpec.parse("code?turns=1&seconds=2&tests_seconds=4"))
    process = EnvironmentProcess(launch, Limits(step_timeout_s=1))
    slow = "import time\ndef f(n):\n    time.sleep(0.7)\n    return n"
    assert scored(process, slow, ("f(1)", 1), ("f(2)", 2)) == ("2 of 2 tests passed.", 1.0)
    process.close()
