"""Daemons of benchmarks, in processes of their own."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.common.history import POLICY
from benchmarks.common.processes import ROOT, ends_at_sigterm
from lightning_trainer.daemon.announcement import announced_url

_STATE_DIR = re.compile(r'state_dir = "[^"]*"')


def example_configuration(name: str) -> str:
    """Return an example's ``lightning.toml`` with a state folder and a port of its own, for ``running_daemon``.

    Raises:
        ValueError: the example names no state folder.
    """
    text = (ROOT / "examples" / name / "lightning.toml").read_text()
    text, found = _STATE_DIR.subn('state_dir = "state"\nport = 0\ntoken = "none"', text, count=1)
    if not found:
        raise ValueError(f"examples/{name}/lightning.toml has no state_dir to replace; name one there")
    return text


@contextmanager
def running_daemon(folder: Path, policy: str) -> Iterator[str]:
    """Yield the daemon's URL once it is ready to train; the environment tells the client in this process where it is.

    The daemon ends with the block, even if SIGTERM ends this process.
    """
    command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(folder / "lightning.toml")]
    with ends_at_sigterm():
        with (folder / "daemon.log").open("wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            url = _wait_until_collecting(daemon, folder, policy)
            os.environ |= {
                "LIGHTNING_ENDPOINT": url,
                "LIGHTNING_TOKEN": "none",  # as configured; the environment may have another daemon's
                "OTEL_SDK_DISABLED": "false",
                "LIGHTNING_SPOOL_DIR": str(folder / "spool"),
                "OPENAI_BASE_URL": f"{url}/v1",
                "OPENAI_API_KEY": "unused",
                "OPENAI_MODEL": policy,
            }
            yield url
        finally:
            daemon.terminate()
            try:
                daemon.wait(120)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
                raise


@contextmanager
def policy_process(state_dir: Path, retention_size: str = "none") -> Iterator[tuple[str, psutil.Process, float]]:
    """Yield the URL of ``policy_process.py``, the process, and the seconds that it took to answer."""
    began = time.monotonic()
    command = [sys.executable, "-m", "benchmarks.common.policy_process", str(state_dir)]
    command += ["--retention-size", retention_size]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        if not url:
            sys.exit("the policy's process did not start; what it said is above")
        with urllib.request.urlopen(f"{url}/lightning/policies/{POLICY}", timeout=60) as answer:
            answer.read()
        yield url, psutil.Process(process.pid), time.monotonic() - began
    finally:
        process.terminate()
        process.wait(60)


def policy_status(url: str, policy: str) -> dict:
    with urllib.request.urlopen(f"{url}/lightning/policies/{policy}", timeout=30) as response:
        return json.load(response)


def cpu_s_of_all() -> float:
    """Return CPU-seconds so far of this process and of those that it started (agent, daemon, engine, and trainer)."""
    total = 0.0
    for process in (me := psutil.Process(), *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _wait_until_collecting(daemon: subprocess.Popen, folder: Path, policy: str) -> str:
    announced = folder / "state" / "daemon.json"
    while daemon.poll() is None:
        url = announced_url(announced)  # ignores a daemon that was killed
        if url is not None and policy_status(url, policy)["phase"] == "collecting":
            return url
        time.sleep(0.5)
    sys.exit(f"the daemon ended with {daemon.returncode}: {(folder / 'daemon.log').read_text()[-500:]}")
