"""Handing a version from the trainer to the engine, and writing down whether it was proven served (promise 8)."""

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lightning_trainer.daemon.publication.canary import Canary
from lightning_trainer.daemon.publication.guard import PromotionGuard
from lightning_trainer.daemon.publication.version_keeper import VersionKeeper
from lightning_trainer.errors import PublicationError, SettingsChangedError
from lightning_trainer.serving.publication import Publication, PublicationReport
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.shared_memory import WeightFolder
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import canaries
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import PolicyVersion, VersionState
from lightning_trainer.versions.sequential import Decision

_log = logging.getLogger(__name__)

_TRIES = 2
"""A file that was damaged on its way, or an engine that died meanwhile, gets a second chance with a new file."""
_COPIED_S = 120.0
"""How long after another daemon made a version live its weights may still be on their way."""


def _require_same(again: Publication, known: str | None, changed: str | None) -> None:
    """Refuse other weights under a version's number if a changed setting, not rounding, made the difference."""
    if changed is None or known in (None, again.checksum):
        return
    Path(again.path).unlink(missing_ok=True)
    raise SettingsChangedError(
        f"{again.name} cannot be made again: {changed}, which gives other weights; set it back, or export the version "
        "that is served (`lightning-trainer export`) and start from that with a new state folder"
    )


@dataclass(slots=True)
class _NotServed:
    """A version that another daemon has made live and this one does not serve."""

    version: int
    since_s: float
    """By the monotonic clock."""
    refused: str | None = None
    """Why the engine refuses it; it is not offered again, since the engine answers no calls while it is offered one."""


class Publisher:
    """Publishes versions of one policy; a refused one leaves the previous version live and says why."""

    def __init__(
        self,
        policy: str,
        *,
        store: Store,
        trainer: TrainerClient,
        engine: EngineReplicas,
        weights: WeightFolder,
        keeper: VersionKeeper,
        guard: PromotionGuard | None = None,
        canary: Canary | None = None,
    ) -> None:
        self._policy = policy
        self._store = store
        self._trainer = trainer
        self._engine = engine
        self._weights = weights
        self._keeper = keeper
        self._guard = guard
        self._canary = canary
        self.refused_in_a_row = 0
        self.last_reason: str | None = None
        self._not_served: _NotServed | None = None

    async def publish(
        self, *, version: int, step: int, asked_for: bool = False, changed: str | None = None
    ) -> PolicyVersion:
        """Write the weights, let guard and canary compare them, let the engine take and prove them, record the outcome.

        Args:
            asked_for: whether a person asked for it, in a rollback or a promotion: neither guard nor canary is asked.
                A version that an earlier canary held back is offered again only then.
            changed: the setting that has changed since the steps that were repeated for the version were trained.

        Raises:
            EngineError: the engine is unavailable.
            TrainingError: the trainer could not write or score them.
            SettingsChangedError: a setting has changed, and the version was made of other weights; it stays as it is.
        """
        began = time.monotonic()
        created_ns = time.time_ns()
        await self._keeper.settled()
        await self._end_canaries(version)
        recorded = None if asked_for else await self._to_compare_with(version)
        live = None if recorded is None else await self._served_again(version, recorded)
        before = await self._store.version(self._policy, version)
        if recorded is not None and before is not None:
            lost = recorded if live is None else None
            if (refused := await self._held_back(before, lost)) is not None:
                return refused
        known = None if before is None else before.checksum
        publication, report, worse = await self._offer(version, step, created_ns, live, known, changed)
        if live is not None and not report.accepted:
            await asyncio.to_thread(self._keeper.archive.remove, version)
        if asked_for and report.accepted and before is not None and before.state is VersionState.REFUSED:
            report = replace(report, reason=f"a person promoted it; it was refused before: {before.reason}")
        outcome = await self._record(publication, report, step, created_ns, time.monotonic() - began)
        if worse is None:  # training goes on after any number of versions that are merely not better
            self.refused_in_a_row = 0 if report.accepted else self.refused_in_a_row + 1
            self.last_reason = report.reason
        return outcome

    async def _offer(
        self, version: int, step: int, created_ns: int, live: int | None, known: str | None, changed: str | None
    ) -> tuple[Publication, PublicationReport, str | None]:
        """Write a version and offer it to the engine, more than once if the engine refuses. The third result says why
        it was not offered if it fell behind the live one; else it is None.

        Args:
            known: the checksum that the version has, if it was made before.
        """
        served = self._engine.live.get(self._policy)
        if served is not None and served.version == version:
            return served, await self._offer_again(served, changed), None
        for attempt in range(1, _TRIES + 1):
            publication = await self._write(version, step, created_ns, known, changed)
            if live is not None and (worse := await self._worse(publication, live)) is not None:
                Path(publication.path).unlink(missing_ok=True)
                return publication, PublicationReport(False, live, worse), worse
            report = await self._engine.publish(publication)
            if report.accepted:
                break
            _log.warning("%s was refused, try %d of %d: %s", publication.name, attempt, _TRIES, report.reason)
        return publication, report, None

    async def _offer_again(self, served: Publication, changed: str | None) -> PublicationReport:
        """Compare the weights that the trainer has made again with those that are served, and keep serving these: a
        version never changes, and on a GPU repeated weights differ in their last bits."""
        again = await self._trainer.publish(self._weights.path_again(served.version), served.version)
        Path(again.path).unlink(missing_ok=True)
        _require_same(again, served.checksum, changed)
        if again.checksum != served.checksum:
            _log.warning(
                "%s was made again, and its file differs from the one that is served: that one stays, and training "
                "goes on from the new one",
                served.name,
            )
        return await self._engine.publish(served)

    async def require_same(self, version: int, changed: str) -> None:
        """Compare the trainer's weights with those that the version was made of, before a step is taken on them.

        Args:
            changed: the setting that has changed since the steps that were repeated for the version were trained.

        Raises:
            TrainingError: the trainer could not write its weights.
            SettingsChangedError: the weights differ.
        """
        recorded = await self._store.version(self._policy, version)
        again = await self._trainer.publish(self._weights.path_again(version), version)
        Path(again.path).unlink(missing_ok=True)
        _require_same(again, recorded and recorded.checksum, changed)

    async def _end_canaries(self, version: int) -> None:
        """End the canaries that an earlier life of the daemon left open. If the candidate is not the version that is
        published now, because a user has gone back meanwhile, it is thereby held back."""
        for left in await self._store.scan(lambda connection: canaries.select_open(connection, self._policy)):
            reason = "its canary ended with the daemon"
            candidate = await self._store.version(self._policy, left.version)
            if candidate is not None and candidate.version != version and candidate.state is VersionState.TRAINED:
                await self._store.put_version(replace(candidate, state=VersionState.REFUSED, reason=reason))
                await asyncio.to_thread(self._keeper.archive.remove, left.version)
            ended = replace(left, state=Decision.INTERRUPTED.value, ended_ns=time.time_ns(), reason=reason)
            await self._store.write_in_turn(
                self._policy, lambda connection, ended=ended: canaries.put(connection, ended)
            )

    async def _held_back(self, version: PolicyVersion, lost: PolicyVersion | None) -> PolicyVersion | None:
        """Return the version as refused if an earlier canary decided so, whether or not the version is recorded as
        refused; or if it was refused for whatever reason and nothing is left to compare it with.

        Args:
            lost: the live version, if it cannot be served again.
        """
        if version.state in (VersionState.LIVE, VersionState.RETIRED):
            return None  # a person put it live after that
        reason = None if self._canary is None else await self._canary.decided_against(version.version)
        if reason is None and lost is not None and version.state is VersionState.REFUSED:
            reason = version.reason
        if reason is None:
            return None
        refused = replace(version, state=VersionState.REFUSED, reason=reason)
        await self._store.put_version(refused)
        if lost is None:
            return refused
        return replace(
            refused,
            reason=f"{reason}; and the weights of {lost.name}, which was live, are not kept: `lightning-trainer "
            f"promote {version.name}` serves it all the same, `lightning-trainer rollback` another one",
        )

    async def _worse(self, publication: Publication, live: int) -> str | None:
        """Return why a candidate must not go live: by the guard, and then by the canary; None if it may."""
        await self._keeper.settled()  # a live version served again: the keeper removes what it does not keep
        worse = None if self._guard is None else await self._guard.refusal(publication, live)
        if worse is None and self._canary is not None:
            worse = await self._canary.refusal(publication, live)
        return worse

    async def set_aside(self) -> Path | None:
        """Rename the folder of kept weights if a trained version is among them, and return where they are now.

        Raises:
            CheckpointError: they cannot be renamed.
        """
        await self._keeper.settled()
        return self._keeper.archive.set_aside()

    async def engine_ready(self, timeout_s: float) -> None:
        """Return when there is an engine to publish to.

        Raises:
            EngineError: there is none within the time.
        """
        await self._engine.ready(timeout_s)

    async def follow(self) -> str | None:
        """Serve the version that another daemon made live, from its kept weights. If that fails, the version served
        before goes on; the next call tries again, unless the engine here has refused the weights.

        Returns:
            Why it is not served here; None if it is, or may soon be.

        Raises:
            EngineError: the engine is unavailable.
        """
        live = await self._store.live_version(self._policy)
        if live is None or live.version == self._served():
            return None
        if self._not_served is None or self._not_served.version != live.version:
            self._not_served = _NotServed(live.version, time.monotonic())
        why = self._not_served.refused or await self._try_to_follow(self._not_served)
        if why is None:
            return None
        return f"{live.name} is live and not served here, where version {self._served()} goes on: {why}"

    async def _try_to_follow(self, live: _NotServed) -> str | None:
        try:
            report = await self.serve_kept(live.version, record=False)
        except (PublicationError, OSError) as error:
            return str(error)
        if report is not None:
            live.refused = None if report.accepted else f"the engine refuses it: {report.reason}"
        elif time.monotonic() - live.since_s > _COPIED_S:
            folder = self._keeper.archive.folder(live.version)
            return f"there is no {folder}; is [store] shared_dir a folder that all daemons see?"
        return live.refused

    async def serve_kept(self, version: int, *, record: bool = True) -> PublicationReport | None:
        """Serve a version from its kept weights at once; nothing changes if they are not kept or not accepted.

        Returns:
            What the engine says of the weights; None if they are not kept.

        Raises:
            EngineError: the engine is unavailable.
            PublicationError: what is kept cannot be read.
        """
        await self._keeper.settled()
        if version not in self._keeper.archive.versions():
            return None
        began = time.monotonic()
        publication = await asyncio.to_thread(self._keeper.archive.copy, version, self._weights.path(version))
        report = await self._engine.publish(publication)
        if report.accepted and not record:
            _log.info("%s, which another daemon published, is served here too", publication.name)
        elif report.accepted:
            await self._record(publication, report, version, time.time_ns(), time.monotonic() - began)
        else:
            _log.warning("the kept weights of %s were refused: %s", publication.name, report.reason)
        return report

    async def _record(
        self, publication: Publication, report: PublicationReport, step: int, created_ns: int, seconds: float
    ) -> PolicyVersion:
        reason = report.reason
        if report.accepted and reason is None:
            before = await self._store.version(self._policy, publication.version)
            if before is not None and before.state in (VersionState.LIVE, VersionState.RETIRED):
                reason = before.reason  # that a person promoted it
        outcome = PolicyVersion(
            self._policy,
            publication.version,
            step,
            VersionState.LIVE if report.accepted else VersionState.REFUSED,
            created_ns,
            checksum=publication.checksum,
            probe_max_abs=report.max_abs_diff,
            probe_mean_abs=report.mean_abs_diff,
            publish_s=seconds,
            reason=reason,
        )
        await self._store.put_version(outcome)
        if report.accepted:
            self._keeper.keep(publication)
        return outcome

    async def _write(
        self, version: int, step: int, created_ns: int, known: str | None, changed: str | None
    ) -> Publication:
        publication = await self._trainer.publish(self._weights.path(version), version)
        _require_same(publication, known, changed)  # before the record of its checksum is replaced
        await self._store.put_version(
            PolicyVersion(self._policy, version, step, VersionState.TRAINED, created_ns, checksum=publication.checksum)
        )
        return publication

    async def _to_compare_with(self, version: int) -> PolicyVersion | None:
        """Return the live version; None if there is nothing that a new version could fall behind."""
        compared = self._guard is not None or self._canary is not None
        live = await self._store.live_version(self._policy) if compared else None
        return None if live is None or live.version == version else live

    async def _served_again(self, version: int, live: PolicyVersion) -> int | None:
        """Serve the live version, unless it is served already, and return it; None if its weights are not kept.

        Raises:
            EngineError: the engine is unavailable.
        """
        if self._served() != live.version:  # the daemon has started since
            try:
                await self.serve_kept(live.version)
            except PublicationError as error:
                _log.warning("%s cannot be served again: %s", live.name, error)
        if self._served() == live.version:
            return live.version
        _log.warning("version %d is not compared with %s, whose weights are not kept", version, live.name)
        return None

    def _served(self) -> int:
        live = self._engine.live.get(self._policy)
        return 0 if live is None else live.version
