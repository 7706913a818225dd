"""A program that is given spans: it keeps each with the client's own outbox and reports which it has kept.

Lines in: a number and a body in base64. Lines out: the numbers whose bodies are on disk or were accepted; from then on
the client promises that they arrive.
"""

import base64
import sys
import time

from lightning_instrumentation.delivery.outbox import Outbox
from lightning_instrumentation.settings import read_settings


def main() -> None:
    nothing: dict = dict.fromkeys(
        ("agent", "service_name", "token", "spool_dir", "spool_limit_bytes", "max_body_bytes", "capture_content")
    )
    outbox = Outbox(read_settings(None, trusted_hosts=(), **nothing))
    for line in sys.stdin:
        number, _, body = line.partition(" ")
        outbox.put(base64.b64decode(body))
        while outbox._memory is not None and outbox._memory.rows:  # no disk: only the daemon's acceptance counts
            time.sleep(0.05)
        print(number, flush=True)
    outbox.close(30)


if __name__ == "__main__":
    main()
