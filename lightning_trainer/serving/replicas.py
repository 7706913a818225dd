"""Several engines that serve the same policies: each is restarted separately, and versions switch on all of them
together.

Invariant: a version is live when every replica has taken it; if one refuses, the others go back to the previous
version. No call begins during the switch, so no call that begins afterwards is answered by the previous version, and no
call at all by a refused one. Running calls end as they would with a single engine.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
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
    """The status of all replicas together: ready if one is; ``pid`` is the first one's, ``restarts`` is the sum."""

    replicas: tuple[EngineStatus, ...]
    conversations: AffinityCounts
    """How often calls reached the replica of their conversation."""
    sleeps: int = field(default=0, kw_only=True)
    """How often the replicas gave their GPU memory to a trainer."""
    asleep_s: float = field(default=0.0, kw_only=True)
    """Total time asleep, during which calls were held."""


class EngineReplicas:
    """One engine or more behind the interface of one. The gateway uses ``ready``, ``begin``, and ``end``.

    A replica that keeps dying is given up and left out; the engine has failed when all of them have.
    """

    gpu: Callable[[], AbstractAsyncContextManager[object]] = nullcontext
    """Returns a context that is held while a version goes live; set for engines that sleep while a trainer computes."""

    def __init__(self, replicas: Sequence[EngineSupervisor]) -> None:
        """``replicas``: one or more, not started; they are started and stopped here."""
        self.replicas = tuple(replicas)
        self._in_flight = dict.fromkeys(self.replicas, 0)
        self._affinity: Affinity[EngineSupervisor] = Affinity()
        self._live: dict[str, Publication] = {}
        self._when_left_out: dict[str, Callable[[str], None]] = {}
        self._publishing = asyncio.Lock()
        self._open = asyncio.Event()
        """Set while calls may begin, that is, while no switch is in progress."""
        self._open.set()
        self._asleep_since: float | None = None
        self.sleeps = 0
        """How often the replicas gave their memory to a trainer and took it back."""
        self.asleep_s = 0.0
        """Total time asleep, during which calls were held."""

    @property
    def first(self) -> EngineSupervisor:
        """Return the replica that holds old adapters: on all of them they would cost memory for a few calls."""
        return self.replicas[0]

    @property
    def state(self) -> EngineState:
        """Return the best state of any replica; failed only if all have failed."""
        states = [replica.state for replica in self.replicas]
        order = (EngineState.READY, EngineState.RESTARTING, EngineState.STARTING, EngineState.STOPPED)
        return next((state for state in order if state in states), EngineState.FAILED)

    @property
    def status(self) -> ReplicasStatus:
        """Return the status of all replicas together: the live versions, and what each replica says."""
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
        """Return the live publication of each policy."""
        return self._live

    def resume(self, publication: Publication, left_out: Callable[[str], None]) -> None:
        """Serve a version of an earlier life of the daemon before the first call begins; call it before ``start``.

        Args:
            left_out: called by ``start`` with the reason if a replica refuses it; all replicas then serve version 0.
        """
        self._live[publication.policy] = publication
        self._when_left_out[publication.policy] = left_out
        for replica in self.replicas:
            replica.resume(publication)

    async def start(self) -> None:
        """Start all replicas and return when they serve.

        Raises:
            EngineError: one does not start.
        """
        await asyncio.gather(*(replica.start() for replica in self.replicas))
        refused = {policy: reason for one in self.replicas for policy, reason in one.left_out.items()}
        for policy, reason in refused.items():
            self._remove(self._live.pop(policy))
            await asyncio.gather(*(one.restore(policy, None) for one in self.replicas if policy in one.live))
            self._when_left_out[policy](reason)

    async def stop(self) -> None:
        """End all replicas; return when nothing is left."""
        await asyncio.gather(*(replica.stop() for replica in self.replicas))

    async def sleep(self, level: int) -> None:
        """Release the replicas' GPU memory until ``wake``; calls that come meanwhile wait in ``ready``."""
        async with self._publishing:
            if self._asleep_since is None:
                self._open.clear()
                self._asleep_since = time.monotonic()
                await asyncio.gather(*(replica.sleep(level) for replica in self.replicas))

    async def wake(self) -> None:
        """Take the memory back and let calls begin; do nothing if the replicas are awake."""
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
            return  # the hot path: every call goes through here
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
        """Return a ready replica for one more call; ``end`` must follow.

        It is the conversation's last replica, unless that one is clearly more loaded, else the one with the fewest
        calls in flight.

        Args:
            avoid: replicas that failed this call; used again only if no other is ready.
            conversation: the conversation that the call continues.

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
        """Mark a call that ``begin`` chose this replica for as ended; call it once."""
        self._in_flight[endpoint] -= 1

    async def publish(self, publication: Publication) -> PublicationReport:
        """Serve a version from now on, on all replicas or on none; the report says why not.

        The version is offered once all restarting replicas are back and no trainer has their GPU. The file belongs to
        this object from here on: the live version's is kept, any other is removed.

        Raises:
            EngineError: no engine serves anything, or one that took the version cannot go back.
            PublicationError: an engine could not read the publication.
        """
        async with self.gpu(), self._publishing:
            before = self._live.get(publication.policy)
            try:
                report = await self._switch(publication, before)
            except Exception:
                self._remove(publication)
                raise
            if (outdated := before if report.accepted else publication) is not None:
                self._remove(outdated)
            return report

    async def _switch(self, publication: Publication, before: Publication | None) -> PublicationReport:
        await self._wake()
        replicas = await self._all_ready()
        await asyncio.gather(*(one.bring(publication) for one in replicas))
        if len(self.replicas) > 1:
            self._open.clear()
        try:
            report = await self._offer(publication, before, replicas)
            if report.accepted:
                self._live[publication.policy] = publication
                # A replica that was given up loads the others' version when it comes back; it may have come back during
                # the switch, with the previous version.
                await asyncio.gather(*(one.adopt(publication) for one in self.replicas))
        finally:
            self._open.set()
        return report

    def _remove(self, publication: Publication) -> None:
        """Remove a publication's file, unless the live version's is the same."""
        live = self._live.get(publication.policy)
        if live is None or publication.path != live.path:
            Path(publication.path).unlink(missing_ok=True)

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
        """Wait for all replicas that are not given up, and return them."""
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
    """Return the results, and the errors; replicas that were given up are in neither."""
    outcomes = dict(zip(works, await asyncio.gather(*works.values(), return_exceptions=True), strict=True))
    results = {one: outcome for one, outcome in outcomes.items() if not isinstance(outcome, BaseException)}
    errors = [
        outcome
        for one, outcome in outcomes.items()
        if isinstance(outcome, BaseException) and one.state is not EngineState.FAILED
    ]
    return results, errors


def _worst(reports: Sequence[PublicationReport]) -> PublicationReport:
    """Return the measurements of the replica that agrees least with the trainer, with the longest of all times."""
    parts = {part for report in reports for part in report.seconds}
    seconds = {part: max(report.seconds.get(part, 0.0) for report in reports) for part in parts}
    return replace(max(reports, key=lambda report: report.max_abs_diff or 0.0), seconds=seconds)
