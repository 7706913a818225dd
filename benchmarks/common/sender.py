"""Sends spans to some daemons in turns, and each delivery again, to the next daemon, until one acknowledges it.

python -m benchmarks.common.sender FIRST COUNT AT_ONCE REST_MS URL...
"""

import itertools
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException

from benchmarks.common.payload import Bodies
from benchmarks.common.processes import ROOT

_GIVES_UP_AFTER_S = 600.0
"""For one delivery: otherwise a process that waits for this one would wait for ever if the store is gone."""
_HEADERS = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}


def start_sender(
    first: int, count: int, urls: Sequence[str], *, at_once: int = 512, rest_s: float = 0.0
) -> subprocess.Popen[str]:
    """Start a process that sends ``count`` spans, numbered from ``first``; it prints how often it had to repeat."""
    numbers = (first, count, at_once, int(1000 * rest_s))
    command = [sys.executable, "-m", "benchmarks.common.sender", *map(str, numbers), *urls]
    return subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE)


def main() -> None:
    first, count, at_once, rest_ms = map(int, sys.argv[1:5])
    daemons = itertools.cycle(sys.argv[5:])
    again = 0
    for _, body in Bodies().requests(count, at_once=at_once, first=first):
        given_up_at = time.monotonic() + _GIVES_UP_AFTER_S
        while not _is_taken(next(daemons), body):
            if time.monotonic() > given_up_at:
                sys.exit(f"no daemon took a delivery for {_GIVES_UP_AFTER_S:.0f} s")
            again += 1
            time.sleep(0.05)
        time.sleep(rest_ms / 1000)
    print(again)


def _is_taken(url: str, body: bytes) -> bool:
    request = urllib.request.Request(f"{url}/v1/traces", body, _HEADERS)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        if error.code < 500:  # it would be refused again
            raise
        return False
    except (OSError, HTTPException):
        return False


if __name__ == "__main__":
    main()
