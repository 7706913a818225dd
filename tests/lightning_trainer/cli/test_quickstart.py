"""The quickstart's own process: whatever ends it, nothing that it started lives on."""

import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lightning_trainer.cli.quickstart.child import running


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ended_while_it_starts_it_takes_its_children_along(how: signal.Signals, tmp_path: Path):
    log = (tmp_path / "out.txt").open("wb")
    command = [sys.executable, "-m", "lightning_trainer", "quickstart", "--steps", "1", "--out", str(tmp_path / "run")]
    # A test run in the background ignores SIGINT, and so would its children.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    quickstart = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=heed)
    children: list[psutil.Process] = []
    deadline = time.monotonic() + 60
    while not children and time.monotonic() < deadline:
        assert quickstart.poll() is None, (tmp_path / "out.txt").read_text()
        children = psutil.Process(quickstart.pid).children(recursive=True)
        time.sleep(0.05)
    assert children

    quickstart.send_signal(how)

    assert quickstart.wait(60) != 0
    _, alive = psutil.wait_procs(children, timeout=30)
    assert not alive
    assert "Traceback" not in (tmp_path / "out.txt").read_text()


def test_a_signal_while_a_child_starts_waits_until_the_child_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    children = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            children.append(self)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with (
            pytest.raises(SystemExit),
            running("child", tmp_path, [sys.executable, "-c", "import time; time.sleep(600)"]),
        ):
            pytest.fail("the block began although the signal had come")
    finally:
        signal.signal(signal.SIGTERM, before)

    assert children[0].returncode is not None
