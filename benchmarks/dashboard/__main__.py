"""How soon the dashboard's pages appear over a long history, and what an open page costs the daemon.

    python -m benchmarks.dashboard               # 1,000,000 spans, 100,000 rollouts, 20,000 steps: 2 GB of disk
    python -m benchmarks.dashboard --quick       # a small one
    python -m benchmarks.dashboard --only pages  # without the steps beside open pages, which take some minutes
    python -m benchmarks.dashboard --json FILE   # figures, goals and verdicts, for machines

The store is that of ``benchmarks/store``. The daemon is the real one, without a policy. Pages are fetched over HTTP
(first byte: the slowest of four fetches; the one before them is noted) and drawn in Chromium if it is installed. What
an open page costs is measured while one span a second arrives, which makes the page fetch itself again as often as it
may. The steps next to open pages are those of the tiny model. The exit status is 0 even if a goal is missed: the table
says so.
"""

import argparse
import json
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil

from benchmarks.common import history
from benchmarks.common.rows import Row, as_json, at_most, print_table
from benchmarks.dashboard import beside_steps
from benchmarks.dashboard.browser import browser
from lightning_trainer.ingest.http.otlp import encode_request
from lightning_trainer.types import Span

_FIRST_BYTE_MS, _DRAWN_MS, _OPEN_PAGE_PER_CENT = 150.0, 1000.0, 1.0
_ASKED = 5
_PAGES = (
    *("/", "/rollouts", "/rollouts?agent=nobody*", "/rollouts?outcome=failed&mode=evaluate", "/rollouts?step={middle}"),
    *(
        "/rollout?id={rollout}",
        "/group?id={group}",
        "/agents",
        "/agents/prompts?agent=support",
        "/versions?policy=support",
    ),
    *("/versions/compare?policy=support&a=1&b=2", "/charts", "/charts?first={middle}", "/costs", "/setup", "/metrics"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--quick", action="store_true", help="20,000 spans and 300 steps")
    parser.add_argument("--only", choices=("pages", "steps"), help="this part alone")
    parser.add_argument("--store", type=Path, help="make the history here, and keep it; one that is here is used again")
    parser.add_argument("--json", type=Path, help="write figures, goals and verdicts to this file")
    options = parser.parse_args()
    if options.quick:
        options.spans, options.steps = 20_000, 300
    folder = Path(tempfile.mkdtemp(prefix="lightning-dashboard-"))
    try:
        rows = []
        if options.only != "steps":
            made = _history(options.store or folder / "state", options.spans, options.steps)
            rows += [*made.rows, *_measure(folder, made, quick=options.quick)]
        if options.only != "pages":
            rows += beside_steps.measure(folder / "steps", pairs=2 if options.quick else 12)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print_table(f"\nthe dashboard over {options.spans:,} spans and {options.steps:,} steps", rows)
    if options.json:
        options.json.write_text(json.dumps({"rows": as_json(rows)}, indent=1) + "\n")


def _history(state_dir: Path, spans: int, steps: int) -> history.History:
    path = state_dir / "lightning.sqlite"
    if not path.exists():
        return history.make(state_dir, spans=spans, steps=steps)
    with closing(sqlite3.connect(path)) as connection:
        (held,) = connection.execute("SELECT count(*) FROM spans").fetchone()
        (trained,) = connection.execute("SELECT count(*) FROM steps").fetchone()
    if (held, trained) != (spans, steps):
        sys.exit(
            f"{state_dir} has {held:,} spans and {trained:,} steps; --spans {spans} --steps {steps} were asked for"
        )
    return history.History(state_dir, held, trained, path.stat().st_size)


def _measure(folder: Path, made: history.History, *, quick: bool) -> Iterator[Row]:
    pages = [page.format(**_places(made)) for page in _PAGES]
    with _daemon(folder, made) as (url, process):
        for page in pages:
            times = [_first_byte_ms(url + page) for _ in range(_ASKED)]
            note = f"the first {times[0]:.0f} ms"
            yield at_most("dashboard", f"first byte of {page}", max(times[1:]), _FIRST_BYTE_MS, "ms", note)
        with browser() as chromium:
            if chromium is None:
                yield Row("dashboard", "drawn in Chromium", None, "ms", note="there is no Chromium here")
                return
            page = chromium.new_page()
            for path in pages[:-1]:
                page.goto(url + path, wait_until="load")
                drawn = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
                yield at_most("dashboard", f"drawn: {path}", drawn, _DRAWN_MS, "ms")
            page.goto("about:blank")
            seconds = 5 if quick else 30
            without = _busy_per_cent(url, process, seconds)
            page.goto(url)
            time.sleep(2)
            share = _busy_per_cent(url, process, seconds) - without
            what, note = "what an open page costs the daemon", f"{without:.2f} % without it, a span a second in both"
            yield at_most("dashboard", what, share, _OPEN_PAGE_PER_CENT, "% of a core", note)


def _busy_per_cent(url: str, process: psutil.Process, seconds: int) -> float:
    """Return how much of a core, in percent, the daemon uses while one span a second arrives."""
    before = _cpu_s(process)
    began = time.monotonic()
    for _ in range(seconds):
        span = Span(secrets.token_hex(16), secrets.token_hex(8), None, "tick", time.time_ns(), time.time_ns() + 1, {})
        body = encode_request([span])
        request = urllib.request.Request(f"{url}/v1/traces", body, {"content-type": "application/x-protobuf"})
        urllib.request.urlopen(request, timeout=30).close()
        time.sleep(1)
    return 100 * (_cpu_s(process) - before) / (time.monotonic() - began)


def _places(made: history.History) -> dict[str, object]:
    with closing(sqlite3.connect(made.state_dir / "lightning.sqlite")) as connection:
        rollout, group = connection.execute(
            """SELECT rollout_id, coalesce(group_id, task_id, rollout_id)
               FROM attempts JOIN assignments USING (attempt_id) ORDER BY step DESC LIMIT 1"""
        ).fetchone()
    quote = urllib.parse.quote
    return {"rollout": quote(rollout, safe=""), "group": quote(group, safe=""), "middle": max(1, made.steps // 2)}


@contextmanager
def _daemon(folder: Path, made: history.History) -> Iterator[tuple[str, psutil.Process]]:
    (folder / "lightning.toml").write_text(
        f'[daemon]\nport = 0\ntoken = "none"\nstate_dir = "{made.state_dir}"\n[store]\nretention_size = "none"\n'
    )
    command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(folder / "lightning.toml")]
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log)
    announced = made.state_dir / "daemon.json"
    began = time.monotonic()
    try:
        while not (text := announced.read_text() if announced.exists() else ""):
            if daemon.poll() is not None or time.monotonic() - began > 120:
                sys.exit(f"the daemon did not start: {(folder / 'daemon.log').read_text()[-500:]}")
            time.sleep(0.02)
        time.sleep(3)  # the first census
        yield json.loads(text)["url"], psutil.Process(daemon.pid)
    finally:
        daemon.terminate()
        daemon.wait(60)


def _first_byte_ms(url: str) -> float:
    began = time.monotonic()
    with urllib.request.urlopen(url, timeout=60) as answer:
        answer.read(1)
        took = time.monotonic() - began
        answer.read()
    return 1000 * took


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


if __name__ == "__main__":
    main()
