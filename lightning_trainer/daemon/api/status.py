"""``/lightning/status``, ``/agents``, ``/groups``, ``/policies/{name}``: what the daemon is doing, as JSON.

Below a policy: ``/versions`` and ``/metrics``.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Protocol

from fastapi import APIRouter, HTTPException, Query

from lightning_trainer import __version__
from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.agents.report import agents_report
from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.rollback import no_policy
from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.daemon.publication.old_versions import OldVersionEngine
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.metrics.row import select_rows
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.store.store import Store
from lightning_trainer.store.worklist.waiting import count_lost
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import RolloutMode
from lightning_trainer.versions.held_out import refresh_verdicts
from lightning_trainer.versions.listing import VersionRow, list_versions

_MAX_WAIT_S = 60.0
_PAGE = 100
_LONGEST_PAGE = 1000
"""Steps, versions or rows in one answer: a run has no end, and a runner asks at every step."""
_LARGEST = 2**62
"""The largest step or version that is looked up; SQLite can hold the number after it, too."""


class WatchedPolicy(Protocol):
    """What the routes read of a policy."""

    policy: PolicyConfig
    progress: Progress
    engine: EngineReplicas
    trainer: TrainerClient
    metrics: MetricsRecorder
    old_versions: OldVersionEngine | OldAdapters


def status_router(
    policies: Sequence[WatchedPolicy],
    *,
    store: Store,
    not_kept: Mapping[str, int] | None = None,
    census: LiveCensus | None = None,
) -> APIRouter:
    """Return the routes.

    Args:
        not_kept: counts requests of signals that are answered and not kept (logs, metrics).
        census: of the store.
    """
    routes = _Status(policies, store, {} if not_kept is None else not_kept, census or LiveCensus(store))
    router = APIRouter()
    router.get("/lightning/status")(routes.status)
    router.get("/lightning/agents", response_model=None)(routes.agents)
    router.get("/lightning/groups")(routes.groups_of_any)
    router.get("/lightning/policies/{name}")(routes.policy)
    router.get("/lightning/policies/{name}/groups")(routes.groups)
    router.get("/lightning/policies/{name}/lost_groups")(routes.lost_groups)
    router.get("/lightning/policies/{name}/versions", response_model=None)(routes.versions)
    router.get("/lightning/policies/{name}/metrics")(routes.metrics)
    return router


class _Status:
    """The routes, a method each."""

    def __init__(
        self, policies: Sequence[WatchedPolicy], store: Store, not_kept: Mapping[str, int], census: LiveCensus
    ) -> None:
        self._by_name = {watched.policy.name: watched for watched in policies}
        self._store = store
        self._not_kept = not_kept
        self._census = census

    async def status(self) -> dict:
        return {
            "version": __version__,
            "pid": os.getpid(),
            "counts": await self._store.counts(),
            "store": await self._store.holds(),
            "not_kept": dict(self._not_kept),
            "policies": {name: {**_phase(one.progress), **_processes(one)} for name, one in self._by_name.items()},
        }

    async def agents(self) -> dict:
        """Return the agents of the newest spans, as ``lightning-trainer agents`` shows them."""
        seen = await self._census.get()
        policies = [watched.policy for watched in self._by_name.values()]
        report = agents_report(seen.agents, seen.losses, policies, seen.unread)
        return {**report, "spans_read": seen.spans_read, "spans_held": seen.spans_held}

    async def groups_of_any(
        self,
        prefix: str = Query("", max_length=512),
        mode: RolloutMode = RolloutMode.TRAIN,
        after: str | None = Query(None, max_length=512),
        limit: int = Query(_LONGEST_PAGE, ge=1, le=_LONGEST_PAGE),
    ) -> dict[str, int]:
        """Return how many attempts of a mode have ended in each group whose id begins with ``prefix``, whether it is a
        policy's or not. Paged like ``groups``."""
        return await self._store.ended_by_group(prefix, mode=mode, after=after, limit=limit)

    async def policy(
        self,
        name: str,
        steps_done: int = Query(0, ge=0),
        groups_wanted: int | None = Query(None, ge=0),
        timeout_s: float = Query(0.0, ge=0, le=_MAX_WAIT_S),
        before: int | None = Query(None, ge=1, le=_LARGEST),
        limit: int = Query(_PAGE, ge=1, le=_LONGEST_PAGE),
    ) -> dict:
        """Return everything about a policy: of its steps, their versions and their ledger, the newest ``limit`` (of
        those before step ``before``). With ``steps_done`` and ``timeout_s``, answer only when that many steps are done,
        or when the present one wants more groups than ``groups_wanted``."""
        watched = self._named(name)
        if timeout_s > 0:
            await watched.progress.wait_for_step(steps_done, timeout_s, groups_wanted=groups_wanted)
        return await _everything(watched, self._store, before, limit)

    async def groups(
        self,
        name: str,
        prefix: str = Query("", max_length=512),
        mode: RolloutMode = RolloutMode.TRAIN,
        taken_until: int | None = Query(None, ge=0, le=_LARGEST),
        taken_after: int = Query(0, ge=0, le=_LARGEST),
        after: str | None = Query(None, max_length=512),
        limit: int = Query(_LONGEST_PAGE, ge=1, le=_LONGEST_PAGE),
    ) -> dict[str, int]:
        """Return how many attempts of a mode have ended in each of the policy's groups whose id begins with ``prefix``;
        with ``taken_until``, how many of those that steps after ``taken_after`` and up to that one have taken. These
        are the first ``limit`` groups by id; the next ones are those ``after`` the last of these.

        If there are several policies, a group belongs to those that answered a call in any of its attempts, or that a
        run made it for."""
        self._named(name)
        return await self._store.ended_by_group(
            prefix,
            mode=mode,
            policy=name if len(self._by_name) > 1 else None,
            taken=None if taken_until is None else (name, taken_after, taken_until),
            after=after,
            limit=limit,
        )

    async def lost_groups(
        self,
        name: str,
        prefix: str = Query("", max_length=512),
        after: str | None = Query(None, max_length=512),
        limit: int = Query(_LONGEST_PAGE, ge=1, le=_LONGEST_PAGE),
    ) -> dict[str, int]:
        """Return the whole groups, each with its number of attempts, whose id begins with ``prefix`` and that no step
        of the policy will take: the attempts were dropped, deleted or let go, or the policy had no part in them. Paged
        like ``groups``."""
        size = self._named(name).policy.group_size
        return await self._store.scan(
            lambda connection: count_lost(connection, name, prefix, group_size=size, after=after, limit=limit)
        )

    async def versions(
        self,
        name: str,
        before: int | None = Query(None, ge=1, le=_LARGEST),
        limit: int = Query(_PAGE, ge=1, le=_LONGEST_PAGE),
    ) -> list[VersionRow]:
        """Return the newest versions (of those before ``before``), as ``lightning-trainer versions`` shows them."""
        watched = self._named(name)
        stored = watched.old_versions.versions()
        await refresh_verdicts(self._store, watched.policy)
        return await self._store.scan(
            lambda connection: list_versions(
                connection, watched.policy, stored, before=before, newest=limit, fresh=False
            )
        )

    async def metrics(
        self,
        name: str,
        after: int | None = Query(None, ge=0, le=_LARGEST),
        limit: int = Query(_PAGE, ge=1, le=_LONGEST_PAGE),
    ) -> dict:
        """Return the first ``limit`` rows of steps after ``after``, without it the newest; and what is wrong now."""
        metrics = self._named(name).metrics
        page = {"newest": limit} if after is None else {"after": after, "oldest": limit}
        shown = await self._store.scan(lambda connection: select_rows(connection, name, **page))
        return {"rows": [row.to_json() for row in shown], "warnings": metrics.warnings}

    def _named(self, name: str) -> WatchedPolicy:
        if name not in self._by_name:
            raise HTTPException(404, no_policy(name, self._by_name))
        return self._by_name[name]


async def _everything(watched: WatchedPolicy, store: Store, before: int | None, limit: int) -> dict:
    policy, progress, name = watched.policy, watched.progress, watched.policy.name
    live = await store.live_version(name)
    steps = await store.steps(name, before=before, newest=limit)
    ledger = await store.ledger(name, since=steps[0].step, before=before) if steps else []
    return {
        **_phase(progress),
        "live_version": live.version if live else None,
        "agents": policy.agents,
        "group_size": policy.group_size,
        "needs_baseline": any(one.algorithm.needs_baseline for one in policy.of_stages),
        "shown_steps": policy.shown_steps,
        "groups_per_step": policy.groups_per_step,
        "groups_wanted": progress.groups_wanted or policy.groups_per_step,
        "dynamic_sampling": any(one.algorithm.dynamic_sampling for one in policy.of_stages),
        "max_staleness": policy.max_staleness,
        "waiting_attempts": progress.waiting_attempts,
        "waiting_groups": _some(progress.waiting_groups),
        "waiting_groups_total": len(progress.waiting_groups),
        "ready_groups": progress.ready_groups,
        "held_attempts": _some(progress.held_attempts),
        "held_attempts_total": len(progress.held_attempts),
        "warnings": watched.metrics.warnings,
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
            for record in steps
        ],
        "versions": [asdict(version) for version in await store.versions(name, before=before, newest=limit)],
        "ledger": [asdict(row) for row in ledger],
    }


def _some(counts: Mapping[str, int]) -> dict[str, int]:
    """Return the first ones; another field says how many there are."""
    return dict(islice(counts.items(), _PAGE))


def _phase(progress: Progress) -> dict:
    return {
        "phase": progress.phase,
        "detail": progress.detail,
        "phase_s": time.time() - progress.since,
        "steps_done": progress.steps_done,
        "problems": progress.problems,
        "late_rewards": progress.late_rewards,
    }


def _processes(watched: WatchedPolicy) -> dict:
    """Return the engine's status, and the processes of this machine."""
    engine = watched.engine.status
    return {
        "engine": asdict(engine),
        "processes": {
            "engine": engine.pid if engine.node is None else None,
            "trainer": watched.trainer.process_id,
            "old_version_engine": watched.old_versions.pid,
        },
        "trainer_shared_with": list(watched.trainer.companions),
    }
