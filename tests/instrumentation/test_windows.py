"""The client on Windows, as far as this machine can stand in for it: what Python lacks there is taken away first.

Not stood in for: how Windows itself starts and ends processes.
"""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from lightning_instrumentation import semconv

pytestmark = pytest.mark.process

WINDOWS = (Path(__file__).parents[1] / "windows.py").read_text(encoding="utf-8")
AS_WINDOWS = WINDOWS + "sys.platform = 'win32'\n"
"""For code that asks for the platform by name; libraries that do so must be imported before."""
OF_LIGHTNING = "from lightning_trainer.cli import main\nmain()\n"
LAUNCHER = AS_WINDOWS + OF_LIGHTNING


def python(code: str, *arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


class TestTheLauncher:
    """Before: ``exec`` started the program beside the shell, which took 0 for its status, and split its arguments."""

    def test_it_waits_for_the_program_and_ends_with_its_status(self, tmp_path) -> None:
        program = "import sys, time; time.sleep(0.5); print(sys.argv[1:]); sys.exit(7)"
        done = python(LAUNCHER, "run", "--", sys.executable, "-c", program, "two words", cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (7, "['two words']\n", "")

    def test_the_program_is_another_process_than_the_launcher_and_is_one_attempt(self, receiver, model, tmp_path):
        receiver.model = model
        code = """
            import os, subprocess, sys
            import httpx
            body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
            httpx.post(os.environ["MODEL_URL"] + "/chat/completions", json=body).raise_for_status()
            if "child" not in sys.argv:
                subprocess.run([sys.executable, "-c", os.environ["CODE"], "child"], check=True)
            """
        code = textwrap.dedent(code)
        options = ["--task", "ticket", "--rollout", "r-1", "--endpoint", receiver.url]
        environment = {"MODEL_URL": model.base_url, "CODE": code, "LIGHTNING_SPOOL_DIR": str(tmp_path)}
        done = python(
            LAUNCHER, "run", *options, "--", sys.executable, "-c", code, cwd=tmp_path, **environment
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        roots = [span for span in receiver.spans() if span.attributes.get(semconv.ROLLOUT_ROOT)]
        assert [root.attributes[semconv.TASK_ID] for root in roots] == ["ticket"]
        assert [span.attributes[semconv.ROLLOUT_ID] for span in receiver.spans("chat")] == ["r-1", "r-1"]

    def test_a_command_that_is_not_there_is_one_sentence(self, tmp_path) -> None:
        done = python(LAUNCHER, "run", "--", "no-such-command", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (127, "")
        assert done.stderr.startswith("error: there is no command 'no-such-command' on PATH")

    def test_ctrl_c_is_the_programs_own(self, tmp_path) -> None:
        program = """
            import os, signal, sys, time
            if os.getppid() == int(sys.argv[1]):
                os.kill(os.getppid(), signal.SIGINT)  # a console sends it to both
            time.sleep(0.5)
            sys.exit(3)
            """
        program = [sys.executable, "-c", textwrap.dedent(program)]
        launcher = f"{AS_WINDOWS}sys.argv += ['run', '--', *{program!r}, str(os.getpid())]\n{OF_LIGHTNING}"
        done = python(launcher, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (3, "")


CLIENT = """
import httpx
import lightning_instrumentation as lt
lt.init()
@lt.tool
def look_up(order):
    return order
with lt.rollout("t"), lt.agent("support"):
    body = {"model": "m", "messages": [{"role": "user", "content": look_up("caf\u00e9")}]}
    httpx.post(os.environ["MODEL_URL"] + "/chat/completions", json=body).raise_for_status()
    lt.reward(1.0)
assert lt.flush(30)
print(lt.stats())
"""


def test_a_program_is_captured_and_delivered_from_memory(receiver, model, tmp_path) -> None:
    receiver.model = model
    environment = {
        "LIGHTNING_ENDPOINT": receiver.url,
        "MODEL_URL": model.base_url,
        "LIGHTNING_SPOOL_DIR": str(tmp_path),
    }
    done = python("import httpx, opentelemetry.sdk.trace\n" + AS_WINDOWS + CLIENT, cwd=tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    assert "waiting=0, rejected=0, dropped=0, failed={}" in done.stdout
    assert [span.name.partition(" ")[0] for span in receiver.spans()] == [
        *("rollout", "invoke_agent", "execute_tool", "chat", "evaluate")
    ]
    assert done.stderr.count("\n") == 1
    assert "spans wait in memory, since Windows has none of the file locks" in done.stderr


def test_a_service_without_a_home_is_told_what_to_set(tmp_path) -> None:
    # Before: AttributeError: module 'os' has no attribute 'getuid'
    homeless = "for name in ('HOME', 'XDG_STATE_HOME', 'LIGHTNING_SPOOL_DIR'):\n    os.environ.pop(name, None)\n"
    code = f"{AS_WINDOWS}{homeless}import lightning_instrumentation as lt\nlt.rollout('t').__enter__()"
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "lightning records nothing: this user has no home directory" in done.stderr
    assert "LIGHTNING_SPOOL_DIR to a folder" in done.stderr
