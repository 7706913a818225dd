"""A serving process keeps the memory that a delivery needed for the next one; looked at in a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

_DELIVERIES = """
import gc, resource, sys, threading
from lightning_trainer.daemon.hardware.loan import settle_memory

if sys.argv[1] == "settled":
    settle_memory()

def deliver():
    for _ in range(100):
        buffers = [bytearray(2**20) for _ in range(8)]
        for buffer in buffers:
            buffer[:] = b"x" * 2**20
        del buffers, buffer

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

before = faults()
thread = threading.Thread(target=deliver)
thread.start()
thread.join()
print(faults() - before, gc.get_freeze_count())
"""


def _measured(which: str) -> tuple[int, int]:
    done = subprocess.run([sys.executable, "-c", _DELIVERIES, which], capture_output=True, text=True, check=True)
    faults, frozen = done.stdout.split()
    return int(faults), int(frozen)


def test_what_a_delivery_needed_is_not_given_back_and_faulted_in_again() -> None:
    (as_it_comes, _), (settled, frozen) = _measured("as it comes"), _measured("settled")
    # A hundred times 9 MiB are 230,400 pages; a process that keeps them touches each once.
    assert settled < 8_000 < as_it_comes
    assert frozen > 1_000
