"""What the dashboard learns from a running daemon and may ask of it: the same things that the command line asks."""

import asyncio
from collections.abc import Mapping, Sequence

from lightning_trainer.daemon.api.labels import LabelBody, label
from lightning_trainer.daemon.api.pausing import pause, resume
from lightning_trainer.daemon.api.rollback import no_policy
from lightning_trainer.daemon.policy_runtime import PolicyRuntime
from lightning_trainer.dashboard.site import PolicyNow
from lightning_trainer.errors import ConfigError, LightningError, RollbackError
from lightning_trainer.ingest.http.bodies import JsonBodyError
from lightning_trainer.serving.lifecycle import EngineState
from lightning_trainer.store.store import Store
from lightning_trainer.store.worklist.drops import Kind
from lightning_trainer.types import SpanSink
from lightning_trainer.versions.held_out import refresh_verdicts

_PATIENCE_S = 3.0
"""How long a page waits for a rollback or a promotion, which continues without the page."""
_READING_S = 0.5
"""How long a page that shows scores waits for the evaluations of all policies together to be read."""


class LiveDaemon:
    """Implements ``dashboard.site.Live``."""

    def __init__(self, policies: Sequence[PolicyRuntime], store: Store, sink: SpanSink) -> None:
        self._policies = {one.policy.name: one for one in policies}
        self._store = store
        self._sink = sink
        self._asked: set[asyncio.Task[None]] = set()

    def now(self) -> Mapping[str, PolicyNow]:
        return {name: _now(one) for name, one in self._policies.items()}

    @property
    def write_failure(self) -> str | None:
        return self._store.write_failure

    async def refresh_scores(self) -> Mapping[str, int]:
        within_s = _READING_S / max(1, len(self._policies))
        return {
            name: await refresh_verdicts(self._store, one.policy, within_s=within_s)
            for name, one in self._policies.items()
        }

    async def roll_back(self, policy: str, version: int) -> str:
        waits = f"{policy} goes back to version {version} between two steps; this page says when it serves it"
        return await self._serve(policy, version, promote=False, waits=waits)

    async def promote(self, policy: str, version: int) -> str:
        waits = f"version {version} of {policy} is proven and then served; this page says when it is"
        return await self._serve(policy, version, promote=True, waits=waits)

    async def _serve(self, policy: str, version: int, *, promote: bool, waits: str) -> str:
        one = self._named(policy)
        going = asyncio.create_task(one.rollbacks.ask(version, promote=promote), name=f"version of {policy}")
        self._asked.add(going)
        going.add_done_callback(lambda task: self._ended(task, one, version))
        await asyncio.wait({going}, timeout=_PATIENCE_S)
        if not going.done():
            return waits
        going.result()
        return f"{policy} serves version {version} and trains on from it"

    async def pause(self, policy: str, reason: str) -> str:
        return await pause(self._store, self._named(policy).rollbacks, policy, reason)

    async def resume(self, policy: str) -> str:
        return await resume(self._store, self._named(policy).rollbacks, policy)

    async def label(
        self, rollout_id: str, *, attempt_id: str | None, reward: float | None, name: str, note: str | None
    ) -> str:
        try:
            body = LabelBody(reward=reward, name=name, note=note, attempt_id=attempt_id)
            return await label(self._store, self._sink, rollout_id, body)
        except (JsonBodyError, ValueError) as error:
            raise ConfigError(str(error)) from error

    async def drop(self, name: str, *, reason: str) -> str:
        dropped = await self._store.drop(name, reason=reason, kind=Kind.ROLLOUT)
        for one in self._policies.values():
            one.rollbacks.wake()
        attempts = f"{dropped.attempts} attempt{'s' * (dropped.attempts != 1)}"
        kept = ", ".join(f"{attempt} (step {step})" for attempt, step in dropped.trained.items())
        also = f"; steps had taken these already, and what was trained stays trained: {kept}" if kept else ""
        return f"rollout {dropped.name}: {attempts} will not be trained{also}"

    def _named(self, policy: str) -> PolicyRuntime:
        if policy not in self._policies:
            raise RollbackError(no_policy(policy, self._policies))
        return self._policies[policy]

    def _ended(self, task: asyncio.Task[None], one: PolicyRuntime, version: int) -> None:
        self._asked.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, LightningError):
            one.progress.say(f"version {version} is not served: {error}")


def _now(one: PolicyRuntime) -> PolicyNow:
    progress, status = one.progress, one.engine.status
    return PolicyNow(
        phase=progress.phase,
        detail=progress.detail,
        since=progress.since,
        steps_done=progress.steps_done,
        engine=status.state,
        warnings=dict(one.metrics.warnings),
        problems=tuple(progress.problems),
        ready_groups=progress.ready_groups,
        groups_wanted=progress.groups_wanted,
        paused=one.rollbacks.paused,
        processes={
            "engine": status.pid if status.node is None else None,
            "trainer": one.trainer.process_id,
            "engine of an old version": one.old_versions.pid,
        },
        served=status.versions.get(one.policy.name) if status.state is EngineState.READY else None,
    )
