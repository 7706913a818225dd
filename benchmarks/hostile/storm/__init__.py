"""Slow, half-open, deaf, and flooding clients at once, on a daemon with few descriptors, next to a good client.

The daemon is a process of its own that only records. The good client sends what an agent sends and tries again when it
is told to, as our client does; its wait is counted from the first try to the acceptance.
"""

import asyncio
import json
import os
import resource
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.common.rows import Row, at_least, at_most
from benchmarks.hostile.fuzz import otlp_bodies
from benchmarks.hostile.fuzz.sending import OverSockets
from benchmarks.hostile.storm.certificate import write_certificate
from lightning_trainer.store.sqlite import SqliteStore

_FILES = 512
"""Descriptors of the daemon, some of which its own files take; the full size has 500 clients."""
_P99_S = 3.0
_MEMORY_MIB = 768
_PAUSE_S = 0.1


def run(folder: Path, clients: int, seconds: float, *, over_tls: bool) -> list[Row]:
    """Run ``clients`` hostile clients and a good one for ``seconds`` seconds.

    Raises:
        RuntimeError: the daemon does not start.
    """
    section = "storm over TLS" if over_tls else "storm"
    files = write_certificate(folder) if over_tls else None
    tls = None if files is None else ssl.create_default_context(cafile=files[0])
    with _daemon(folder, files) as (daemon, port):
        hostile = [sys.executable, "-m", "benchmarks.hostile.storm.clients", str(port), str(clients)]
        hostile += [] if files is None else [str(files[0])]
        here = Path(__file__).parents[2]
        path = os.pathsep.join((str(here), *filter(None, (os.environ.get("PYTHONPATH"),))))
        storm = subprocess.Popen(hostile, cwd=here, env=os.environ | {"PYTHONPATH": path}, stdin=subprocess.PIPE)
        try:
            good = asyncio.run(_good(OverSockets(port, tls), seconds, psutil.Process(daemon.pid)))
        finally:
            storm.kill()
            storm.wait()
        alive = daemon.poll() is None
    log = (folder / "daemon.log").read_text(errors="replace")
    stored = asyncio.run(_stored(folder / "state" / "lightning.sqlite", good.accepted))
    waits_s = sorted(good.waits_s)
    return [
        Row(
            section,
            "hostile clients at once",
            clients,
            "",
            note=f"for {seconds:g} s; {_FILES} descriptors in the daemon",
        ),
        at_least(section, "the daemon lives", int(alive), 1, ""),
        at_most(section, "good requests not accepted", good.failed, 0, f"of {len(waits_s)}", good.said),
        at_most(
            section,
            "good attempts accepted and not stored",
            len(good.accepted) - stored,
            0,
            f"of {len(good.accepted)}",
        ),
        Row(
            section,
            "good requests, median",
            waits_s[len(waits_s) // 2],
            "s",
            note=f"told to come again {good.again} times",
        ),
        at_most(section, "good requests, p99", waits_s[int(0.99 * (len(waits_s) - 1))], _P99_S, "s"),
        at_most(
            section, "peak memory of the daemon", good.peak_mib, _MEMORY_MIB, "MiB", f"{good.first_mib:.0f} MiB before"
        ),
        at_most(
            section,
            "tracebacks in its log",
            log.count("Traceback"),
            0,
            "",
            _raised(log),
        ),
    ]


def _raised(log: str) -> str:
    """Return the end of the log's first traceback: the innermost frames and what was raised."""
    lines = log[log.find("Traceback") :].splitlines() if "Traceback" in log else []
    ends = next((place for place, line in enumerate(lines[1:], 1) if line[:1].strip()), len(lines))
    return "\n".join(lines[: ends + 1])[-600:]


class _Good:
    def __init__(self) -> None:
        self.waits_s: list[float] = []
        self.accepted: list[str] = []
        self.failed = self.again = 0
        self.said = ""
        self.first_mib = self.peak_mib = 0.0


async def _good(sockets: OverSockets, seconds: float, daemon: psutil.Process) -> _Good:
    good = _Good()
    good.first_mib = good.peak_mib = daemon.memory_info().rss / 2**20
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        name, number = f"good-{number}", number + 1
        body = otlp_bodies.attempt(name, task=name).SerializeToString()
        began = time.monotonic()
        status, said = await _accepted(sockets, body, good)
        good.waits_s.append(time.monotonic() - began)
        if status == 200:
            good.accepted.append(name)
        else:
            good.failed, good.said = good.failed + 1, f"{status}: {said[:200]}"
        good.peak_mib = max(good.peak_mib, daemon.memory_info().rss / 2**20)
        await asyncio.sleep(_PAUSE_S)
    return good


async def _accepted(sockets: OverSockets, body: bytes, good: _Good) -> tuple[int, str]:
    deadline = time.monotonic() + 60
    while True:
        status, said = await sockets.send("POST", "/v1/traces", body, {"content-type": "application/x-protobuf"})
        if status not in (0, 408, 503) or time.monotonic() > deadline:
            return status, said
        good.again += 1
        await asyncio.sleep(0.25)


async def _stored(path: Path, attempts: list[str]) -> int:
    async with SqliteStore(path) as store:
        return sum([await store.attempt(attempt) is not None for attempt in attempts])


@contextmanager
def _daemon(folder: Path, tls: tuple[Path, Path] | None) -> Iterator[tuple[subprocess.Popen, int]]:
    config = folder / "lightning.toml"
    shown = "" if tls is None else f'tls_cert = "{tls[0]}"\ntls_key = "{tls[1]}"\n'
    config.write_text(f'[daemon]\nport = 0\ntoken = "none"\nstate_dir = "{folder / "state"}"\n{shown}')
    command = [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(config)]
    with (folder / "daemon.log").open("wb") as log:
        daemon = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, preexec_fn=_few_files)
    try:
        announced, deadline = folder / "state" / "daemon.json", time.monotonic() + 120
        while not announced.exists() or not announced.read_text():
            if daemon.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((folder / "daemon.log").read_text(errors="replace")[-2000:])
            time.sleep(0.1)
        yield daemon, int(json.loads(announced.read_text())["url"].rpartition(":")[2])
    finally:
        daemon.terminate()
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()


def _few_files() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (_FILES, _FILES))
