"""How large a history is on the disk, and how soon a daemon that records is up on it, with and without retention.

The history is written in bulk (``common/history.py``). If retention is on, it has a twentieth of the history to delete:
the daemon has to be up and to answer meanwhile.
"""

import json
import tempfile
import time
import urllib.request
from pathlib import Path

from benchmarks.common import history
from benchmarks.common.recorders import Recorder
from benchmarks.common.rows import Row

TITLE = "A recording daemon on a long history"

_SPANS_OF_STEP = 50
_KEPT = 0.95
"""Of the history, if retention is on; it deletes slowly, so that it does not hold up other work."""
_PATIENCE_S = 600.0
"""How long to wait for retention."""


def run(quick: bool = False) -> list[Row]:
    sizes = (100_000, 300_000) if quick else (1_000_000, 3_000_000)
    return [row for spans in sizes for row in _measure(spans)]


def _measure(spans: int) -> list[Row]:
    what = f"{spans:,} spans"
    with tempfile.TemporaryDirectory(prefix="lightning-scale-") as scratch:
        folder = Path(scratch)
        made = history.make(folder / "state", spans=spans, steps=spans // _SPANS_OF_STEP)
        rows = [
            Row("store", f"{what}: file", made.bytes / 2**20, "MiB", note=f"{made.bytes / spans:,.0f} bytes a span")
        ]
        off = Recorder(folder / "off", {"retention_size": "none"}, state_dir=made.state_dir)
        try:
            rows.append(Row("store", f"{what}: start of the daemon, retention off", off.start(), "s"))
        finally:
            off.stop()
        limit = int(_KEPT * made.bytes)
        on = Recorder(folder / "on", {"retention_size": f"{limit}B"}, state_dir=made.state_dir)
        try:
            start_s = on.start()
            size, seconds = _until_within(on.url, limit)
        finally:
            on.stop()
    note = f"the limit is {limit / 2**20:,.0f} MiB; after {seconds:.0f} s"
    return [
        *rows,
        Row("store", f"{what}: start of the daemon, retention on", start_s, "s"),
        Row("store", f"{what}: file and log, retention on", size / 2**20, "MiB", note=note),
    ]


def _until_within(url: str, limit: int) -> tuple[int, float]:
    """Return the store's bytes and the seconds, as soon as the bytes are within the limit or the patience is over."""
    began = time.monotonic()
    while True:
        with urllib.request.urlopen(f"{url}/lightning/status", timeout=60) as answer:
            size = json.load(answer)["store"]["size_bytes"]
        seconds = time.monotonic() - began
        if size <= limit or seconds > _PATIENCE_S:
            return size, seconds
        time.sleep(1.0)
