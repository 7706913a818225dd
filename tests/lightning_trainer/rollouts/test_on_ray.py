"""Attempts in Ray's worker processes: a real Ray on this machine."""

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.scope import current

from lightning_trainer.rollouts.attempt import run_attempt
from lightning_trainer.rollouts.on_ray import OnRay

pytestmark = [pytest.mark.verl, pytest.mark.ray]
ENDPOINT = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Task:
    id: str


@pytest.fixture(scope="module")
def ray_session() -> Iterator[None]:
    import ray
    from ray import cloudpickle

    # Workers cannot import this file: what it defines travels as it is.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    ray.init(address="local", num_cpus=1, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def spool(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    lt.shutdown(0)
    lt.init(ENDPOINT)
    yield tmp_path
    lt.shutdown(0)


def run(attempt, spool: Path, timeout_s: float = 120.0):
    on_ray = OnRay(
        attempt, endpoint=ENDPOINT, num_cpus=1, runtime_env={"env_vars": {"LIGHTNING_SPOOL_DIR": str(spool)}}
    )
    return run_attempt(on_ray, Task("t"), stage="train", step=1, group_id="g", mode="train", timeout_s=timeout_s)


def test_an_attempt_runs_in_another_process_and_belongs_to_its_rollout(ray_session, spool: Path) -> None:
    def attempt(task) -> float:
        identity = current().identity
        assert identity is not None
        assert (identity.task_id, identity.group_id) == ("t", "g")
        return float(os.getpid())

    ended = run(attempt, spool)
    assert ended.error is None
    assert ended.reward is not None
    assert int(ended.reward) != os.getpid()


def test_a_coroutine_is_awaited_there(ray_session, spool: Path) -> None:
    async def attempt(task) -> float:
        await asyncio.sleep(0)
        identity = current().identity
        assert identity is not None
        return float(identity.task_id == "t")

    ended = run(attempt, spool)
    assert (ended.reward, ended.error) == (1.0, None)


def test_what_an_attempt_raises_there_is_raised_here(ray_session, spool: Path) -> None:
    def attempt(task) -> float:
        raise KeyError("no such tool")

    assert run(attempt, spool).error == "KeyError: 'no such tool'"


def test_a_worker_that_dies_is_a_failed_attempt(ray_session, spool: Path) -> None:
    def attempt(task) -> float:
        os._exit(1)

    ended = run(attempt, spool)
    assert ended.error is not None
    assert ended.error.startswith("RuntimeError: Ray lost the attempt")


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("sleeps", "awaits")), "clings"]
)
def test_what_takes_too_long_gives_its_core_back(how: str, ray_session, spool: Path, monkeypatch) -> None:
    monkeypatch.setattr("lightning_trainer.rollouts.on_ray._END_S", 3.0)

    async def awaits(task) -> float:
        await asyncio.sleep(600)
        return 1.0

    def sleeps(task) -> float:
        while True:
            try:
                time.sleep(600)
            except KeyboardInterrupt:
                if how == "sleeps":
                    raise

    ended = run(awaits if how == "awaits" else sleeps, spool, timeout_s=4.0)
    assert ended.error == "TimeoutError: the attempt did not end within 4 s"
    assert run(lambda task: 1.0, spool, timeout_s=60.0).error is None
