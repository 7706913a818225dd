"""An engine's process does not outlive the daemon, whatever was done to either."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.process

HOST = """
import time
from lightning_trainer.serving.host.parent_watchdog import watch_standard_input
watch_standard_input()
print("up", flush=True)
time.sleep(1000)
"""
OWNER = """
import subprocess, sys, time
host = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                        start_new_session=True)
host.stdout.readline()
print(host.pid, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("stopped", [False, True])
def test_it_ends_with_its_parent_even_where_it_was_stopped(stopped: bool) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER, HOST], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        host = psutil.Process(int(owner.stdout.readline()))
        if stopped:
            os.kill(host.pid, signal.SIGSTOP)
            while host.status() != psutil.STATUS_STOPPED:
                time.sleep(0.01)
        owner.kill()
    _, alive = psutil.wait_procs([host], timeout=60)
    assert alive == []
