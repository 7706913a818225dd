"""Where no thread can be started, as at the end of a program on Python 3.12, what waits is delivered all the same."""

import contextlib
import os
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from lightning_instrumentation.delivery.spool import orphaned_spools

pytestmark = pytest.mark.process

NO_THREAD = """
import threading
start_thread = threading.Thread.start
def start(thread):
    if thread.name == "lightning-sender":
        raise RuntimeError("can't create new thread at interpreter shutdown")
    start_thread(thread)
threading.Thread.start = start
import lightning_instrumentation as lt
@lt.agent("a")
def work():
    pass
"""


def run(code: str, endpoint: str, spool_dir: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "LIGHTNING_ENDPOINT": endpoint, "LIGHTNING_SPOOL_DIR": str(spool_dir)}
    program = [sys.executable, "-c", NO_THREAD + textwrap.dedent(code)]
    return subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)


def test_it_is_delivered_by_whoever_flushes_and_at_the_end(receiver, tmp_path):
    # Before: "Exception ignored in atexit callback", and the spans waited for the next process.
    code = """
    from lightning_instrumentation.delivery import outbox
    outbox._AT_EXIT_S = 30.0  # on a crowded machine a second is short
    work()
    assert lt.flush(30)
    print(lt.stats().delivered)
    work()
    """
    done = run(code, receiver.url, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert len(receiver.spans()) == 2


def test_several_threads_may_flush_at_once(receiver, tmp_path):
    code = """
    from concurrent.futures import ThreadPoolExecutor
    def both(_):
        work()
        return lt.flush(30)
    with ThreadPoolExecutor(8) as pool:
        print(all(pool.map(both, range(64))))
    """
    done = run(code, receiver.url, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert len(receiver.spans()) == 64


@pytest.mark.parametrize("hangs", [False, True])
def test_no_daemon_that_is_gone_or_hangs_delays_the_end(receiver, tmp_path, hangs):
    receiver.stop()
    port = urlsplit(receiver.url).port
    with socket.create_server(("127.0.0.1", port)) if hangs else contextlib.nullcontext():
        began = time.monotonic()
        done = run("work()", receiver.url, tmp_path)
        lasted_s = time.monotonic() - began
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert lasted_s < 15  # a daemon's answer has 30 s where a thread waits for it
    (orphan,) = orphaned_spools(tmp_path, receiver.url)
    assert orphan.rows == 1
    orphan.close()
