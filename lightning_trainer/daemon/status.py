"""``/lightning/status``, ``/lightning/agents``, ``/lightning/policies/{name}``: what the daemon is doing, as JSON.

Below a policy: ``/versions`` and ``/metrics``.
"""

import os
import time
from dataclasses import asdict

from fastapi import APIRouter, HTTPException, Query

from lightning_trainer import __version__
from lightning_trainer.agents.live import LiveCensus
from lightning_trainer.agents.report import AgentsReport, agents_report
from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.old_adapters import OldAdapters
from lightning_trainer.daemon.old_versions import OldVersionEngine
from lightning_trainer.daemon.progress import Progress
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import RolloutMode
from lightning_trainer.versions.listing import VersionRow, list_versions

_MAX_WAIT_S = 60.0


def status_router(
    policy: PolicyConfig,
    *,
    store: SqliteStore,
    progress: Progress,
    engine: EngineSupervisor,
    trainer: TrainerClient,
    metrics: MetricsRecorder,
    old_versions: OldVersionEngine | OldAdapters,
) -> APIRouter:
    router = APIRouter()
    census = LiveCensus(store)

    @router.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok", "version": __version__}

    @router.get("/lightning/status")
    async def status() -> dict:
        return {
            "version": __version__,
            "engine": asdict(engine.status),
            "processes": {
                "daemon": os.getpid(),
                "engine": engine.status.pid,
                "trainer": trainer.process_id,
                "old_version_engine": old_versions.pid,
            },
            "counts": await store.counts(),
            "policies": {policy.name: _phase(progress)},
        }

    @router.get("/lightning/agents", response_model=None)
    async def agents() -> AgentsReport:
        """Every agent that was seen, as ``lightning-trainer agents`` shows it."""
        return agents_report(*await census.get(), [policy])

    @router.get("/lightning/policies/{name}")
    async def one_policy(
        name: str,
        steps_done: int = Query(0, ge=0),
        groups_wanted: int | None = Query(None, ge=0),
        timeout_s: float = Query(0.0, ge=0, le=_MAX_WAIT_S),
    ) -> dict:
        """Everything about a policy. With ``steps_done`` and ``timeout_s`` it answers when that many steps are done, or
        when the present one wants more groups than ``groups_wanted``."""
        _check(name)
        if timeout_s > 0:
            await progress.wait_for_step(steps_done, timeout_s, groups_wanted=groups_wanted)
        live = await store.live_version(name)
        return {
            **_phase(progress),
            "live_version": live.version if live else None,
            "agents": policy.agents,
            "group_size": policy.group_size,
            "needs_baseline": any(one.algorithm.needs_baseline for one in policy.of_stages),
            "shown_steps": policy.shown_steps,
            "groups_per_step": policy.groups_per_step,
            "groups_wanted": progress.groups_wanted or policy.groups_per_step,
            "dynamic_sampling": policy.algorithm.dynamic_sampling,
            "max_staleness": policy.max_staleness,
            "waiting_groups": progress.waiting_groups,
            "ready_groups": progress.ready_groups,
            "held_attempts": progress.held_attempts,
            "warnings": metrics.warnings,
            "steps": [
                {
                    "step": record.step,
                    "state": record.state,
                    "metrics": {**record.metrics, **(record.report.metrics if record.report else {})},
                    "tokens_trained": record.report.tokens_trained if record.report else 0,
                    "tokens_computed": record.report.tokens_computed if record.report else 0,
                    "tokens_sequential": record.report.tokens_sequential if record.report else 0,
                    "seconds": dict(record.report.seconds) if record.report else {},
                }
                for record in await store.steps(name)
            ],
            "versions": [asdict(version) for version in await store.versions(name)],
            "ledger": [asdict(row) for row in await store.ledger(name)],
        }

    @router.get("/lightning/policies/{name}/groups")
    async def groups(
        name: str,
        prefix: str = Query("", max_length=512),
        mode: RolloutMode = RolloutMode.TRAIN,
        consumed: bool = False,
    ) -> dict[str, int]:
        """How many attempts of a mode have ended of each group whose id begins with ``prefix``; ``consumed``: those
        that a step of the policy has taken."""
        _check(name)
        return await store.ended_by_group(prefix, mode=mode, consumed_by=name if consumed else None)

    @router.get("/lightning/policies/{name}/versions", response_model=None)
    async def versions(name: str) -> list[VersionRow]:
        """Every version, as ``lightning-trainer versions`` shows it."""
        _check(name)
        stored = old_versions.versions()
        return await store.scan(lambda connection: list_versions(connection, policy, stored))

    @router.get("/lightning/policies/{name}/metrics")
    async def rows(name: str, after: int = Query(0, ge=0)) -> dict:
        """The rows of steps beyond ``after``, and what is wrong now."""
        _check(name)
        return {
            "rows": [row.to_json() for row in metrics.rows if row.step > after],
            "warnings": metrics.warnings,
        }

    def _check(name: str) -> None:
        if name != policy.name:
            raise HTTPException(404, f"there is no policy {name!r}; the policy of this daemon is {policy.name!r}")

    return router


def _phase(progress: Progress) -> dict:
    return {
        "phase": progress.phase,
        "detail": progress.detail,
        "phase_s": time.time() - progress.since,
        "steps_done": progress.steps_done,
        "problems": progress.problems,
        "late_rewards": progress.late_rewards,
    }
