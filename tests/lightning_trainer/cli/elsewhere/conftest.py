"""A daemon of another folder, known here by its URL and its token alone."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import Config
from lightning_trainer.daemon.access.identity import challenge_router
from lightning_trainer.daemon.api.explaining import explaining_router
from lightning_trainer.daemon.api.health import health_router
from lightning_trainer.daemon.api.pausing import pausing_router
from lightning_trainer.daemon.api.rollback import RollbackRequests, rollback_router
from lightning_trainer.daemon.api.status import status_router
from lightning_trainer.daemon.api.store import store_router
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import RollbackError
from lightning_trainer.gateway.auth import require_token
from lightning_trainer.gateway.http_errors import answer_in_the_callers_shape
from lightning_trainer.serving.affinity import AffinityCounts
from lightning_trainer.serving.replicas import ReplicasStatus
from lightning_trainer.serving.supervisor import EngineState, EngineStatus
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, RolloutMode, VersionState

TOKEN = "a-token-of-another-machine"
CONFIG = f'[daemon]\nport = 0\nstate_dir = "state"\ntoken = "{TOKEN}"\n'


@pytest.fixture(scope="module")
def serve(lightning) -> Iterator[Callable[[Path, str], str]]:
    """``serve(folder, "more of its lightning.toml")`` starts a daemon and returns its URL."""
    running: list[subprocess.Popen] = []

    def start(folder: Path, more: str) -> str:
        (folder / "lightning.toml").write_text(CONFIG + more)
        with (folder / "log").open("wb") as log:
            daemon = lightning.start("serve", cwd=folder, stdout=log, stderr=log)
        running.append(daemon)
        announced, deadline = folder / "state" / "daemon.json", time.monotonic() + 120
        while not (announced.exists() and announced.read_text()):
            assert daemon.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return json.loads(announced.read_text())["url"]

    yield start
    for daemon in running:
        daemon.send_signal(signal.SIGINT)
        daemon.wait(60)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder that knows nothing of the daemon but its token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LIGHTNING_ACCESS_DIR", str(tmp_path / "access"))
    monkeypatch.setenv("LIGHTNING_TOKEN", TOKEN)
    monkeypatch.delenv("LIGHTNING_ENDPOINT", raising=False)
    return tmp_path


@pytest.fixture
def said() -> Callable:
    """``await said("status", status=2)`` runs a command and returns what it printed, on one line."""

    async def run(*arguments: str, status: int = 0, columns: int = 200) -> str:
        done = await asyncio.to_thread(CliRunner().invoke, app, arguments, env={"COLUMNS": str(columns)})
        assert done.exit_code == status, (done.output, done.exception)
        return " ".join(done.output.split())

    return run


READY = EngineStatus(EngineState.READY, 4711, {}, 0, 1.0, None)


class Elsewhere:
    """A daemon's routes over a store, with a loop that only notes what it is asked."""

    def __init__(self, store: SqliteStore, policies: list) -> None:
        self.store = store
        self.policies = policies
        self.config = Config(policy=tuple(policies))
        self.requests = {one.name: RollbackRequests(asyncio.Event()) for one in policies}
        self.done: list[tuple[str, int, bool]] = []
        self.url = ""

    def app(self) -> FastAPI:
        made = FastAPI()
        answer_in_the_callers_shape(made)
        token = os.environ["LIGHTNING_TOKEN"]
        made.include_router(challenge_router(token, "0" * 32))
        for router in (
            store_router(self.store, self.requests),
            explaining_router(self.store, self.config),
            pausing_router(self.store, self.requests),
            rollback_router(self.requests),
            status_router([_watched(one) for one in self.policies], store=self.store),
        ):
            made.include_router(router, dependencies=[Depends(require_token(token))])
        made.include_router(health_router([_watched(one) for one in self.policies], self.store, lambda: False))
        return made

    async def loop(self, name: str) -> None:
        requests = self.requests[name]
        while True:
            await requests.wait()
            if (asked := requests.pending) is None:
                continue
            if asked.version == 99:
                requests.end(RollbackError(f"there is no version 99 of {name}"))
                continue
            self.done.append((name, asked.version, asked.promote))
            requests.end()


def _watched(policy) -> Any:
    engine = ReplicasStatus(
        *(READY.state, READY.pid, {}, 0, 1.0, None), replicas=(READY,), conversations=AffinityCounts()
    )
    return SimpleNamespace(
        policy=policy,
        progress=Progress(),
        metrics=SimpleNamespace(warnings={"kl": "it wanders"}),
        engine=SimpleNamespace(status=engine),
        trainer=SimpleNamespace(process_id=1, companions=()),
        old_versions=SimpleNamespace(pid=None, versions=lambda: ()),
    )


@pytest.fixture
def daemon_of(here, tmp_path_factory, make_policy, attempt_spans, reward_span) -> Callable:
    """``daemon_of("math")``: one with these policies, each at version 3 of which the second earned most; and the
    attempt a of rollout r-a, for which nobody trained yet."""

    @contextlib.asynccontextmanager
    async def made(*names: str) -> AsyncIterator[Elsewhere]:
        policies = [make_policy(name=name, agents=(f"agent-of-{name}",)) for name in names]
        state = tmp_path_factory.mktemp("elsewhere") / "state"
        async with SqliteStore(state / "lightning.sqlite") as store, asyncio.TaskGroup() as group:
            for name in names:
                await store.enroll(name)
                for version in range(4):
                    await store.put_version(PolicyVersion(name, version, version, VersionState.LIVE, version))
            await store.append(attempt_spans("a", [1, 2], time.time_ns() - 10**9))
            for number, reward in enumerate((0.2, 0.3, 0.9, 0.4) if "math" in names else ()):
                evaluated = attempt_spans(f"e{number}", [1, 2], 10 + number, version=number)
                await store.append([*map(_held_out, evaluated), reward_span(reward, attempt=f"e{number}")])
            daemon = Elsewhere(store, policies)
            loops = [group.create_task(daemon.loop(name)) for name in names]
            with contextlib.closing(bind("127.0.0.1", 0)) as listener:
                daemon.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
                async with serving(daemon.app(), listener):
                    yield daemon
            for one in loops:
                one.cancel()

    return made


def _held_out(span):
    told = {semconv.ROLLOUT_MODE: RolloutMode.EVALUATE.value, semconv.GROUP_ID: f"held-out/{span.span_id}"}
    return replace(span, attributes={**span.attributes, **told})
