"""Fifty ``kill -9``s at random moments over daemon, engine and trainer: the run ends where an undisturbed one does.

The data is the same for both: a real agent's run is recorded, and its spans are sent again to a second daemon, in
another order and some of them twice, while that daemon's processes are killed. Everything that it acknowledged is in
its store in the end, no token is in two steps, and every version's weights are the same, bit for bit.

    pytest -m slow tests/loop/test_fifty_kills.py -s      # about an hour on two cores
    KILLS=6 KILLS_SEED=3 pytest -m slow ...               # a part of it, at other moments
"""

import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import InstrumentationScope
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from lightning_trainer.store.tables.steps import select_batches

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow, pytest.mark.timeout(0)]

KILLS = int(os.environ.get("KILLS", "50"))
SEED = int(os.environ.get("KILLS_SEED", "0"))
KILLS_A_STEP = 2
STEPS = max(2, KILLS // KILLS_A_STEP)
STEP_LASTS_S = 5.0
"""About: the first kill of a step is somewhere in it, the next ones while it recovers."""
RECOVERY_LASTS_S = 60.0
PATIENCE_S = 900.0
AGENT = Path(__file__).with_name("agent_script.py")
CONFIG = """
[daemon]
port = {port}
state_dir = "state"
[engine]
dtype = "float32"
max_model_len = 512
max_num_seqs = 8
kv_cache_gib = 0.25
[training]
dtype = "float32"
threads = 1
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
checkpoint_every = 3
optimizer.lr = 1e-2
"""
Message = tuple[list[tuple[str, str]], bytes]
"""Ids of the spans in it, and an OTLP body."""


class Supervised:
    """A daemon that somebody starts again whenever it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "lightning.toml").write_text(CONFIG.format(port=self.port))
        self.environment = os.environ | {"LIGHTNING_ENDPOINT": self.url, "LIGHTNING_SPOOL_DIR": str(folder / "spool")}
        self.started: set[psutil.Process] = set()
        self.start()

    def start(self) -> None:
        with (self.folder / "daemon.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(self.folder / "lightning.toml")],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def get(self, path: str) -> dict | None:
        """What it says, or None while it is away."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as response:
                return json.load(response)
        except OSError:
            return None

    def wait_for(self, steps: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.last_words()
            status = self.get("/lightning/policies/tiny")
            if status is not None and status["steps_done"] >= steps and status["phase"] == "collecting":
                return
            assert status is None or status["phase"] != "paused", status["detail"]
            time.sleep(0.2)
        raise AssertionError(f"step {steps} is not done after {PATIENCE_S:g} s: {self.last_words()}")

    def kill(self, what: str) -> str | None:
        """Kill it now, and return what the daemon was doing; None where there was no such process."""
        pid, phase = None, "starting"
        if (status := self.get("/lightning/status")) is not None:
            seen = status["policies"]["tiny"]
            pid, phase = seen["processes"].get(what), seen["phase"]
        if what == "daemon":
            pid = self.process.pid
        if pid is None:
            return None
        if what == "daemon":
            self.started |= set(self.process_tree())
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return None
        if what == "daemon":
            self.process.wait(30)
            self.start()
        return phase

    def process_tree(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def send(self, message: Message, acknowledged: set[tuple[str, str]]) -> None:
        """Send until it is acknowledged, as the client does."""
        ids, body = message
        request = urllib.request.Request(
            f"{self.url}/v1/traces", body, {"content-type": "application/x-protobuf"}, method="POST"
        )
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(request, timeout=30):
                    acknowledged.update(ids)
                    return
            except urllib.error.HTTPError as error:
                if error.code < 500:
                    raise AssertionError(error.read()) from error
            except OSError:
                pass
            assert self.process.poll() is None, self.last_words()
            time.sleep(0.2)
        raise AssertionError("nobody took the spans")

    def checksums(self) -> dict[int, str]:
        status = self.get("/lightning/policies/tiny")
        assert status is not None
        return {version["version"]: version["checksum"] for version in status["versions"]}

    def rows(self, query: str) -> list[tuple]:
        database = sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)
        try:
            return database.execute(query).fetchall()
        finally:
            database.close()

    def trained(self) -> list[str]:
        database = sqlite3.connect(f"file:{self.folder / 'state' / 'lightning.sqlite'}?mode=ro", uri=True)
        try:
            batches = select_batches(database, "tiny", after=0)
        finally:
            database.close()
        return [part.transition_id for batch in batches for sample in batch.samples for part in sample.segments]

    def last_words(self) -> str:
        return (self.folder / "daemon.log").read_text()[-3000:]

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise


def record(folder: Path) -> tuple[dict[int, str], list[list[Message]], set[tuple[str, str]], list[str]]:
    """Run an agent undisturbed; return versions, the messages of each step, all span ids, and what was trained."""
    daemon = Supervised(folder)
    try:
        daemon.wait_for(0)
        agent = [sys.executable, str(AGENT), "--steps", str(STEPS)]
        environment = daemon.environment | {"OPENAI_BASE_URL": f"{daemon.url}/v1"}
        done = subprocess.run(agent, env=environment, timeout=PATIENCE_S, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:] + daemon.last_words()
        daemon.wait_for(STEPS)
        rows = daemon.rows(
            "SELECT trace_id, span_id, scope, spans.body, resources.body, step FROM spans"
            " JOIN resources ON resources.id = resource_id JOIN assignments USING (attempt_id) ORDER BY seq"
        )
        messages = [_messages([row[:5] for row in rows if row[5] == step]) for step in range(1, STEPS + 1)]
        return daemon.checksums(), messages, {row[:2] for row in rows}, daemon.trained()
    finally:
        daemon.stop()


def _messages(rows: Sequence[tuple[str, str, str, bytes, bytes]]) -> list[Message]:
    """The spans of a step in small bodies. The gateway's come first: a call is committed before it is answered."""
    rng = random.Random(f"{SEED}/{rows[0][1]}")
    made: list[Message] = []
    for gateway in (True, False):
        part = [row for row in rows if (row[2] == "lightning.gateway") is gateway]
        rng.shuffle(part)
        for batch in _batched(part, 3):
            spans = [
                ResourceSpans(
                    resource=Resource.FromString(resource),
                    scope_spans=[ScopeSpans(scope=InstrumentationScope(name=scope), spans=[Span.FromString(body)])],
                )
                for _, _, scope, body, resource in batch
            ]
            body = ExportTraceServiceRequest(resource_spans=spans).SerializeToString()
            made += [([row[:2] for row in batch], body)] * rng.choice((1, 1, 2))
    return made


def _batched(part: Sequence, size: int) -> Iterator[Sequence]:
    for start in range(0, len(part), size):
        yield part[start : start + size]


def test_the_run_ends_where_an_undisturbed_one_does(tmp_path: Path) -> None:
    (tmp_path / "undisturbed").mkdir()
    (tmp_path / "killed").mkdir()
    versions, steps, spans, trained = record(tmp_path / "undisturbed")
    assert len(set(versions.values())) == STEPS + 1, "every step changed the weights"
    rng = random.Random(SEED)
    acknowledged: set[tuple[str, str]] = set()
    kills: Counter[tuple[str, str]] = Counter()
    daemon = Supervised(tmp_path / "killed")
    try:
        daemon.wait_for(0)
        for step, messages in enumerate(steps, start=1):
            began = time.monotonic()
            moments = [rng.uniform(0, STEP_LASTS_S)]
            for _ in range(KILLS_A_STEP - 1):
                moments.append(moments[-1] + rng.uniform(0, RECOVERY_LASTS_S))
            whom = [rng.choice(("daemon", "engine", "trainer")) for _ in moments]
            unsent = list(messages)
            while unsent or moments:
                if unsent and (not moments or rng.random() < 0.5):
                    daemon.send(unsent.pop(0), acknowledged)
                elif not unsent and moments:
                    time.sleep(max(0.0, began + moments[0] - time.monotonic()))
                if moments and time.monotonic() >= began + moments[0]:
                    phase = daemon.kill(whom[0])
                    if phase is None:  # it is being started: the one that starts it is not
                        whom[0] = "daemon"
                        continue
                    kills[whom.pop(0), phase] += 1
                    moments.pop(0)
            daemon.wait_for(step)
            print(f"step {step:>3} of {STEPS}  {kills.total():>3} kills", flush=True)
        for (what, phase), count in sorted(kills.items()):
            print(f"{count:>4} x {what} while {phase}")

        assert kills.total() >= KILLS - 1
        assert daemon.checksums() == versions, "the weights of every version, bit for bit"
        assert acknowledged == spans
        assert spans <= set(daemon.rows("SELECT trace_id, span_id FROM spans")), "an acknowledged span is missing"
        assert Counter(daemon.trained()) == Counter(trained), "the same transitions, each once"
        assert max(Counter(daemon.trained()).values()) == 1
    finally:
        daemon.stop()
    _, alive = psutil.wait_procs([process for process in daemon.started if process.is_running()], timeout=150)
    assert not alive, f"left behind by a killed daemon: {alive}"
