"""Sends spans to some daemons in turns, and each delivery again, to the next one, until it is acknowledged.

python -m benchmarks.store.sender FIRST COUNT AT_ONCE URL...
"""

import itertools
import sys
import time
import urllib.error
import urllib.request
from http.client import HTTPException

from benchmarks.common.payload import Bodies

_HEADERS = {"content-type": "application/x-protobuf", "content-encoding": "gzip"}


def main() -> None:
    first, count, at_once = map(int, sys.argv[1:4])
    daemons = itertools.cycle(sys.argv[4:])
    again = 0
    for _, body in Bodies().requests(count, at_once=at_once, first=first):
        while not _is_taken(next(daemons), body):
            again += 1
            time.sleep(0.05)
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
