"""A version goes live when its held-out score is not below the live one's; what is served changes by nothing else."""

import json
import sys
import threading
import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.daemon.publication import candidate_serving
from lightning_trainer.daemon.publication.guard import PromotionGuard
from lightning_trainer.daemon.publication.old_versions import Lease, OldVersionBusyError
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.publication.version_keeper import VersionKeeper
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance
from lightning_trainer.serving.shared_memory import WeightFolder
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import VersionState
from lightning_trainer.versions.archive import VersionArchive

EVALUATION = """
import json, os
candidate = os.environ["LIGHTNING_CANDIDATE"]
assert os.environ["LIGHTNING_ENDPOINT"] == "http://127.0.0.1:8321"
assert os.environ["LIGHTNING_TOKEN"] == "a token of the gateway"
with open("evaluated", "a") as log:
    log.write(candidate + "\\n")
with open("scores.json") as scores:
    print(json.load(scores)[candidate])
"""


class OldVersions:
    """Serves what the archive has, and remembers what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.archive = VersionArchive(folder / "versions", model_dir=folder)
        self.told: list[str] = []
        self.busy = 0
        self.ready_error: str | None = None

    async def lease(self, version: int) -> Lease | None:
        if self.busy:
            self.busy -= 1
            raise OldVersionBusyError("version 3 is being evaluated")
        assert version in self.archive.versions()
        self.told.append(f"lease {version}")
        upstream: Any = SimpleNamespace(ready=self._ready)
        return Lease(upstream, lambda: self.told.append(f"release {version}"))

    async def let_go(self, version: int) -> None:
        self.told.append(f"let go {version}")

    async def _ready(self, timeout_s: float) -> None:
        if self.ready_error is not None:
            raise EngineError(self.ready_error)


class Trainer:
    """Writes its version's number as the weights."""

    async def publish(self, path: Path, version: int) -> Publication:
        path.write_text(f"weights {version}")
        probe, shape = Probe(((1, 2),), ((-0.5,),)), AdapterShape(4, 8, ("q_proj",))
        return Publication("p", version, str(path), "ab" * 16, 2, "float32", probe, Tolerance(1e-3, 1e-3), shape)


class Engine:
    """Takes everything but ``refused``, and keeps the live version's file alone."""

    def __init__(self) -> None:
        self.live: dict[str, Publication] = {}
        self.published: list[int] = []
        self.refused: int | None = None

    async def publish(self, publication: Publication) -> PublicationReport:
        self.published.append(publication.version)
        if publication.version == self.refused:
            return PublicationReport(False, 0, "it differs")
        self.live["p"] = publication
        return PublicationReport(True, publication.version)


class Run:
    """A publisher with a guard whose evaluation looks the scores up, and what a test needs to see."""

    def __init__(self, folder: Path, store: SqliteStore, **settings: Any) -> None:
        self.folder, self.store = folder, store
        self.old = OldVersions(folder)
        self.settings = settings
        self.scores: dict[str, float | str] = {"p@v0": 0.5}
        self.start()

    def start(self) -> None:
        """A new life of the daemon on the same folder."""
        weights = self.folder / "weights"
        weights.mkdir(exist_ok=True)
        self.engine = Engine()
        config = GuardConfig(command=(sys.executable, "-S", "-c", EVALUATION), working_dir=self.folder, **self.settings)
        old: Any = self.old
        self.guard = PromotionGuard(
            "p",
            config,
            old,
            url="http://127.0.0.1:8321",
            token="a token of the gateway",
            log_dir=self.folder / "logs",
        )
        policy = PolicyConfig(name="p", agents=("a",), model="random:tiny")
        engine: Any = self.engine
        trainer: Any = Trainer()
        self.publisher = Publisher(
            "p",
            store=self.store,
            trainer=trainer,
            engine=engine,
            weights=WeightFolder(weights),
            keeper=VersionKeeper(policy, store=self.store, archive=self.old.archive),
            guard=self.guard,
        )

    async def publish(self, version: int, score: float | str | None = None, *, asked_for: bool = False) -> str | None:
        """Publish a version that scores so; the reason where it is refused."""
        if score is not None:
            self.scores[f"p@v{version}"] = score
        (self.folder / "scores.json").write_text(json.dumps(self.scores))
        outcome = await self.publisher.publish(version=version, step=version, asked_for=asked_for)
        await self.publisher._keeper.settled()
        live = outcome.state is VersionState.LIVE
        assert live == (outcome.reason is None or outcome.reason.startswith("a person promoted it; it was refused"))
        return None if live else outcome.reason

    @property
    def evaluated(self) -> list[str]:
        log = self.folder / "evaluated"
        return log.read_text().split() if log.exists() else []

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "weights").iterdir())

    async def live(self) -> int:
        live = await self.store.live_version("p")
        assert live is not None
        assert self.engine.live["p"].version == live.version
        return live.version


@pytest.fixture
async def make_run(tmp_path: Path):
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(SqliteStore(tmp_path / "lightning.sqlite"))
        yield lambda **settings: Run(tmp_path, store, **settings)


async def test_a_version_that_scores_as_well_goes_live_and_each_is_evaluated_once(make_run):
    run = make_run()
    assert await run.publish(0) is None
    assert run.evaluated == [], "there is nothing that it can fall behind"
    assert await run.publish(1, 0.5) is None
    assert await run.publish(2, 0.75) is None
    assert run.evaluated == ["p@v0", "p@v1", "p@v2"]
    assert run.old.told == [f"{what} {version}" for version in (1, 2) for what in ("lease", "release", "let go")]
    assert await run.live() == 2


async def test_a_version_that_scores_less_is_refused_with_both_scores_and_leaves_nothing_behind(make_run):
    run = make_run()
    await run.publish(0)
    await run.publish(1, 0.75)
    reason = await run.publish(2, 0.5)
    assert reason == "its held-out score is 0.5, of p@v1, which is live, 0.75, and guard.tolerance is 0"
    assert run.engine.published == [0, 1], "the engine was never asked"
    assert await run.live() == 1
    assert run.old.archive.versions() == [0, 1]
    assert "v2.safetensors" not in run.files
    versions = {row.version: row for row in await run.store.versions("p")}
    assert (versions[2].state, versions[2].reason) == (VersionState.REFUSED, reason)


async def test_training_goes_on_after_any_number_of_them(make_run):
    run = make_run()
    await run.publish(0)
    for version in (1, 2, 3):
        assert await run.publish(version, 0.25) is not None
    assert run.publisher.refused_in_a_row == 0
    assert await run.publish(4, 0.5) is None
    assert await run.live() == 4


async def test_a_version_that_the_engine_refuses_still_counts_against_the_run(make_run):
    run = make_run()
    await run.publish(0)
    run.engine.refused = 1
    assert await run.publish(1, 1.0) == "it differs"
    assert run.publisher.refused_in_a_row == 1
    assert run.evaluated == ["p@v0", "p@v1"], "not again for the second try"
    assert run.old.archive.versions() == [0]


async def test_a_fall_within_the_tolerance_is_none(make_run):
    run = make_run(tolerance=0.25)
    await run.publish(0)
    assert await run.publish(1, 0.25) is None
    assert await run.publish(2, -0.01) is not None


async def test_without_a_score_nothing_goes_live(make_run):
    run = make_run()
    await run.publish(0)
    assert "'no number'; it has to be the score" in (await run.publish(1, "no number") or "")
    run.old.ready_error = "the engine of the candidate did not start"
    assert (await run.publish(2, 1.0)) == "its held-out score is not known: the engine of the candidate did not start"
    assert run.old.told[-2:] == ["release 2", "let go 2"]
    assert await run.live() == 0
    run.old.ready_error = None
    assert await run.publish(2) is None, "it is tried again when it is published again"


async def test_somebody_who_calls_an_old_version_is_waited_for(make_run, monkeypatch):
    monkeypatch.setattr(candidate_serving, "_LOOK_AGAIN_S", 0.01)
    run = make_run()
    await run.publish(0)
    run.old.busy = 3
    assert await run.publish(1, 1.0) is None
    assert run.old.busy == 0


async def test_a_version_that_somebody_goes_back_to_is_served_whatever_it_scores(make_run):
    run = make_run()
    await run.publish(0)
    assert await run.publish(1, 0.0) is not None
    assert await run.publish(1, asked_for=True) is None
    assert await run.live() == 1


async def test_after_a_restart_the_live_version_is_served_and_compared_with(make_run):
    run = make_run()
    await run.publish(0)
    await run.publish(1, 0.75)
    await run.publish(2, 0.5)
    run.start()
    assert await run.publish(2) is not None
    assert (run.engine.published, await run.live()) == ([1], 1)
    assert run.evaluated[-2:] == ["p@v1", "p@v2"]
    run.start()
    assert await run.publish(1) is None, "the live one itself is published as ever"
    assert run.evaluated[-2:] == ["p@v1", "p@v2"]


async def test_a_candidate_is_not_taken_for_a_leftover_when_the_live_version_is_served_again(make_run, monkeypatch):
    """Before: on a busy machine what was being copied of it was removed, and it was refused."""
    run = make_run()
    await run.publish(0)
    await run.publish(1, 0.75)
    prune, evaluated = VersionArchive.prune, []

    def late(self: VersionArchive, kept: Collection[int]) -> None:
        time.sleep(0.5)
        evaluated.append(run.evaluated[2:])
        prune(self, kept)

    run.start()
    monkeypatch.setattr(VersionArchive, "prune", late)
    assert await run.publish(2, 0.8) is None
    assert evaluated[0] == []


async def test_where_the_live_version_is_lost_the_new_one_is_served(make_run):
    run = make_run()
    await run.publish(0)
    await run.publish(1, 0.75)
    run.start()
    run.old.archive.remove(1)
    assert await run.publish(2, 0.5) is None
    assert await run.live() == 2


async def test_where_the_live_version_is_lost_what_was_refused_is_not_served_instead(make_run):
    run = make_run()
    await run.publish(0)
    await run.publish(1, 0.75)
    refused = await run.publish(2, 0.5)
    assert refused is not None
    run.start()
    run.old.archive.remove(1)
    for _ in range(2):  # as often as it starts
        again = await run.publish(2)
        assert again is not None
        assert again.startswith(f"{refused}; and the weights of p@v1, which was live, are not kept: ")
        assert again.count("not kept") == 1
    assert run.engine.published == []
    assert await run.publish(2, asked_for=True) is None


async def test_what_another_daemon_made_live_and_the_engine_here_refuses_is_offered_once(make_run):
    run = make_run()
    await run.publish(0)
    await run.publish(1, 0.5)
    run.start()  # as another daemon that follows, and has served version 0 so far
    run.engine.refused = 1
    said = {await run.publisher.follow() for _ in range(3)}
    (sentence,) = said
    assert sentence is not None
    assert sentence.startswith("p@v1 is live and not served here, where version 0 goes on: the engine refuses it: ")
    assert run.engine.published == [1]
    run.engine.refused = None
    run.start()
    assert await run.publisher.follow() is None
    assert run.engine.live["p"].version == 1


async def test_its_evaluation_reaches_the_daemon_and_the_environments_proxy_hears_of_nothing(
    tmp_path: Path, monkeypatch
):
    # Before: httpx sent the daemon's token to the proxy, and the version was refused
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    heard: list[tuple[str, str]] = []

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            heard.append((self.path, self.headers["authorization"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"0.5")

    code = (
        "import os, httpx; headers = {'authorization': os.environ['LIGHTNING_TOKEN']}; "
        "print(httpx.get(os.environ['LIGHTNING_ENDPOINT'], headers=headers).text)"
    )
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        # The proxy is where nobody listens: what is sent there fails.
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
        config = GuardConfig(command=(sys.executable, "-c", code), working_dir=tmp_path)
        url = f"http://127.0.0.1:{server.server_port}"
        old: Any = OldVersions(tmp_path)
        guard = PromotionGuard("p", config, old, url=url, token="its token", log_dir=tmp_path)
        assert await guard._score(0) == 0.5
        server.shutdown()
    assert heard == [("/", "its token")]
