"""Engines that serve the same policies: each comes back by itself, and versions switch on all of them together.

Invariant: a version is live when every replica has taken it; where one refuses, the others go back to the version
before. No call begins while they switch, so none that begins afterwards is answered by the version before, and none at
all by a version that was refused. Calls that run already end as they would in one engine.
"""

import asyncio
import logging
import time
from collections.abc import Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.affinity import Affinity, AffinityCounts
from lightning_trainer.serving.lifecycle import EngineState, EngineStatus
from lightning_trainer.serving.publication import Publication, PublicationReport
from lightning_trainer.serving.supervisor import EngineSupervisor

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ReplicasStatus(EngineStatus):
    """Ready when one is; ``pid`` is the first one's, ``restarts`` all of theirs."""

    replicas: tuple[EngineStatus, ...]
    conversations: AffinityCounts
    """How often calls found the replica of their conversation."""
    sleeps: int = field(default=0, kw_only=True)
    """How often they gave their GPU memory to a trainer."""
    asleep_s: float = field(default=0.0, kw_only=True)
    """How long that was together; calls were held meanwhile."""


class EngineReplicas:
    """One engine or more behind the face of one. What the gateway needs of it: ``ready``, ``begin``, ``end``.

    A replica that keeps dying is given up and left out; the engine has failed when all have.
    """

    def __init__(self, replicas: Sequence[EngineSupervisor]) -> None:
        """
        Args:
            replicas: one or more, not started; they are started and stopped here.
        """
        self.replicas = tuple(replicas)
        self._in_flight = dict.fromkeys(self.replicas, 0)
        self._affinity: Affinity[EngineSupervisor] = Affinity()
        self._live: dict[str, Publication] = {}
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        """Calls may begin: no switch is under way."""
        self._open.set()
        self._asleep_since: float | None = None
        self.sleeps = 0
        """How often they gave their memory to a trainer and took it back."""
        self.asleep_s = 0.0
        """How long that was together, and calls were held."""

    @property
    def first(self) -> EngineSupervisor:
        """The one that old adapters are asked of: to hold them on all would cost memory everywhere for a few calls."""
        return self.replicas[0]

    @property
    def state(self) -> EngineState:
        states = [replica.state for replica in self.replicas]
        order = (EngineState.READY, EngineState.RESTARTING, EngineState.STARTING, EngineState.STOPPED)
        return next((state for state in order if state in states), EngineState.FAILED)

    @property
    def status(self) -> ReplicasStatus:
        each = tuple(replica.status for replica in self.replicas)
        of_ready = next((one for one in each if one.state is EngineState.READY), each[0])
        return ReplicasStatus(
            state=self.state,
            pid=each[0].pid,
            node=each[0].node,
            versions={
                policy: self._live[policy].version if policy in self._live else 0 for policy in of_ready.versions
            },
            restarts=sum(one.restarts for one in each),
            startup_s=max((one.startup_s for one in each if one.startup_s is not None), default=None),
            last_error=next((one.last_error for one in each if one.last_error is not None), None),
            retry_at=min((one.retry_at for one in each if one.retry_at is not None), default=None),
            replicas=each,
            conversations=self._affinity.counts,
            sleeps=self.sleeps,
            asleep_s=self.asleep_s,
        )

    @property
    def live(self) -> Mapping[str, Publication]:
        """What is served by policy."""
        return self._live

    async def start(self) -> None:
        """Start all of them and return when they serve.

        Raises:
            EngineError: one does not start.
        """
        await asyncio.gather(*(replica.start() for replica in self.replicas))

    async def stop(self) -> None:
        """End all of them; returns when nothing is left."""
        await asyncio.gather(*(replica.stop() for replica in self.replicas))

    async def sleep(self, level: int) -> None:
        """Give their GPU memory away until ``wake``; calls that begin meanwhile wait in ``ready``."""
        async with self._publishing:
            if self._asleep_since is None:
                self._open.clear()
                self._asleep_since = time.monotonic()
                await asyncio.gather(*(replica.sleep(level) for replica in self.replicas))

    async def wake(self) -> None:
        """Take it back and let calls begin; nothing where they are awake."""
        async with self._publishing:
            await self._wake()

    async def _wake(self) -> None:
        if self._asleep_since is None:
            return
        try:
            await asyncio.gather(*(replica.wake() for replica in self.replicas))
        finally:
            self.sleeps += 1
            self.asleep_s += time.monotonic() - self._asleep_since
            self._asleep_since = None
            self._open.set()

    async def ready(self, timeout_s: float) -> None:
        """Wait until a call can begin.

        Raises:
            EngineError: it cannot within ``timeout_s``, or never will.
        """
        if self._open.is_set() and self.state is EngineState.READY:
            return  # every call comes by here
        give_up = asyncio.get_running_loop().time() + timeout_s
        while True:
            try:
                async with asyncio.timeout_at(give_up):
                    await self._open.wait()
            except TimeoutError:
                what = (
                    "changing versions" if self._asleep_since is None else "without their GPU, which the trainer uses,"
                )
                raise EngineError(f"the engines have been {what} for over {timeout_s:g} s") from None
            await self._one_ready(max(0.0, give_up - asyncio.get_running_loop().time()))
            if self._open.is_set() and self.state is EngineState.READY:
                return

    def begin(self, avoid: Collection[Any] = (), conversation: str | None = None) -> EngineSupervisor:
        """Return a ready replica for one more call; ``end`` has to follow.

        It is the one that the conversation was last at, unless that has clearly more to do, else the one with the
        fewest calls in flight.

        Args:
            avoid: those that the call was sent to in vain; they get it again only where no other is ready.
            conversation: what the call goes on with.

        Raises:
            EngineError: none is ready.
        """
        ready = [replica for replica in self.replicas if replica.state is EngineState.READY]
        if not ready:
            raise EngineError(f"the engine is {self.state}; await ready() first")
        untried = [replica for replica in ready if replica not in avoid]
        chosen = self._affinity.choose(untried or ready, self._in_flight, conversation)
        self._in_flight[chosen] += 1
        return chosen

    def end(self, endpoint: Any) -> None:
        """A call that ``begin`` chose this replica for has ended; once."""
        self._in_flight[endpoint] -= 1

    async def publish(self, publication: Publication) -> PublicationReport:
        """Serve a version on all of them from now on, or on none of them and say why.

        It is offered when all that come back have come back. The file is ours from here: the live version's stays, any
        other is removed.

        Raises:
            EngineError: there is no engine to serve anything, or one that took the version cannot go back.
            PublicationError: an engine could not read the publication.
        """
        async with self._publishing:
            await self._wake()
            replicas = await self._all_ready()
            before = self._live.get(publication.policy)
            await asyncio.gather(*(one.bring(publication) for one in replicas))
            if len(replicas) > 1:
                self._open.clear()
            try:
                report = await self._offer(publication, before, replicas)
            finally:
                self._open.set()
            outdated = publication
            if report.accepted:
                outdated, self._live[publication.policy] = before, publication
                # One that was given up comes back with what the others serve by then.
                await asyncio.gather(*(one.adopt(publication) for one in self.replicas))
            live = self._live.get(publication.policy)
            if outdated is not None and (live is None or outdated.path != live.path):
                Path(outdated.path).unlink(missing_ok=True)
            return report

    async def _offer(
        self, publication: Publication, before: Publication | None, replicas: Sequence[EngineSupervisor]
    ) -> PublicationReport:
        reports, errors = await _all_of({replica: replica.publish(publication) for replica in replicas})
        refused = {one: report for one, report in reports.items() if not report.accepted}
        if refused or errors:
            took = [one for one, report in reports.items() if report.accepted]
            _, back = await _all_of({one: one.restore(publication.policy, before) for one in took})
            errors += back
        if errors or not reports:
            raise errors[0] if errors else EngineError(self.status.last_error or "the engine failed")
        for replica, report in refused.items():
            if len(self.replicas) == 1:
                return report
            reason = f"replica {self.replicas.index(replica) + 1} of {len(self.replicas)}: {report.reason}"
            logger.warning("%s goes live on no replica: %s", publication.name, reason)
            return replace(report, reason=reason)
        return _worst(list(reports.values()))

    async def _all_ready(self) -> list[EngineSupervisor]:
        """Wait for all that are not given up, and return them."""
        waits = {replica: replica.ready(replica.settings.startup_timeout_s) for replica in self.replicas}
        ready, errors = await _all_of(waits)
        if errors:
            raise errors[0]
        if not ready:
            raise EngineError(self.status.last_error or "the engine failed")
        return list(ready)

    async def _one_ready(self, timeout_s: float) -> None:
        waits = [asyncio.create_task(replica.ready(timeout_s)) for replica in self.replicas]
        try:
            error: EngineError | None = None
            for one in asyncio.as_completed(waits):
                try:
                    return await one
                except EngineError as failed:
                    error = failed
            raise error or EngineError("there is no engine")
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)


async def _all_of(
    works: Mapping[EngineSupervisor, Coroutine[Any, Any, Result]],
) -> tuple[dict[EngineSupervisor, Result], list[BaseException]]:
    """Return what came of it for each, and the errors; those that were given up are in neither."""
    outcomes = dict(zip(works, await asyncio.gather(*works.values(), return_exceptions=True), strict=True))
    results = {one: outcome for one, outcome in outcomes.items() if not isinstance(outcome, BaseException)}
    errors = [
        outcome
        for one, outcome in outcomes.items()
        if isinstance(outcome, BaseException) and one.state is not EngineState.FAILED
    ]
    return results, errors


def _worst(reports: Sequence[PublicationReport]) -> PublicationReport:
    """Return what was measured where trainer and engine agreed least, with the longest of all times."""
    parts = {part for report in reports for part in report.seconds}
    seconds = {part: max(report.seconds.get(part, 0.0) for report in reports) for part in parts}
    return replace(max(reports, key=lambda report: report.max_abs_diff or 0.0), seconds=seconds)
