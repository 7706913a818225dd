"""How an adapter gets into the engine: check, load next to the old one, prove, and only then send requests to it.

Invariant: requests run only on adapters whose probe agreed, and each on one adapter from its first token to its last.
Nothing is paused: running requests continue with the adapter that they began with.
"""

import asyncio
import json
import logging
import shutil
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS
from lightning_trainer.serving.host.probe.probe_comparison import ProbeHistory, Rows, Verdict, compare
from lightning_trainer.serving.host.probe.probe_scoring import score
from lightning_trainer.serving.host.weights.adapters import Adapters, LoadedAdapter
from lightning_trainer.serving.host.weights.publisher import EngineUnproven
from lightning_trainer.serving.host.weights.rw_lock import RwLock
from lightning_trainer.serving.host.weights.served_model import ServedModel, log_outcome, outside, refused
from lightning_trainer.serving.host.weights.sleeping import Sleep
from lightning_trainer.serving.host.weights.version_pinning import (
    VERSION_HEADER,
    Message,
    PinnedRequest,
    Receive,
    Sampler,
    read_body,
    replaying,
)
from lightning_trainer.serving.publication import Publication, PublicationReport

logger = logging.getLogger(__name__)

_ASLEEP = "the engine sleeps; wake it first"
"""A publication is refused, because it would wait for its probe's scores until the engine is awake, and ``wake`` would
wait for the publication."""


@dataclass(slots=True)
class _Policy:
    """One policy: the adapter of its new requests (None: the model itself, version 0), and the old ones next to it."""

    live: LoadedAdapter | None = None
    report: PublicationReport | None = None
    held: dict[int, LoadedAdapter] = field(default_factory=dict)
    history: ProbeHistory = field(default_factory=ProbeHistory)

    @property
    def version(self) -> int:
        return self.live.publication.version if self.live is not None else 0

    def has(self, wanted: int | None) -> bool:
        return wanted is None or wanted == self.version or wanted in self.held

    def adapter(self, wanted: int | None) -> LoadedAdapter | None:
        return self.live if wanted is None or wanted == self.version else self.held[wanted]


class AdapterPublisher:
    """Serves the adapters of several policies from one model; one publication at a time."""

    def __init__(
        self,
        engine: Any,
        adapters: Adapters,
        model: ServedModel,
        weights_directory: Path,
        drain_timeout_s: float | None,
    ) -> None:
        self.model = model
        self._engine = engine
        self._adapters = adapters
        self._weights_directory = weights_directory.resolve()
        self._policies = {name: _Policy() for name in model.policies}
        self._one_at_a_time = asyncio.Lock()
        self._rw_lock = RwLock()
        """Closed while the engine sleeps, never for loading an adapter."""
        self._sleep = Sleep(engine, self._rw_lock)
        self._drain_timeout_s = drain_timeout_s

    @property
    def versions(self) -> Mapping[str, int]:
        """Return the version that each policy serves."""
        return {name: policy.version for name, policy in self._policies.items()}

    @asynccontextmanager
    async def pin(self, scope: Message, receive: Receive) -> AsyncIterator[PinnedRequest]:
        """Give a request the newest adapter of the policy that it names as its model, or the old one it asks for."""
        body = await read_body(receive)
        async with self._rw_lock.reading(), self._adapter_of(scope, body, receive) as pinned:
            yield pinned

    @asynccontextmanager
    async def _adapter_of(self, scope: Message, body: bytes | None, receive: Receive) -> AsyncIterator[PinnedRequest]:
        document = _json_object(body)
        policy = self._policies.get(document.get("model", ""))
        if policy is None:
            yield PinnedRequest(replaying(body, receive), None)
            return
        wanted = _wanted_version(scope)
        if not policy.has(wanted):  # lost when the engine restarted, for example; no other version may answer instead
            unknown = json.dumps({**document, "model": f"{document['model']}@v{wanted}"}).encode("utf-8")
            yield PinnedRequest(replaying(unknown, receive), None)
            return
        adapter = policy.adapter(wanted)
        if adapter is None:
            yield PinnedRequest(replaying(body, receive), Sampler(document["model"], 0))
            return
        async with self._adapters.running_on(adapter):
            renamed = json.dumps({**document, "model": adapter.name}).encode("utf-8")
            publication = adapter.publication
            yield PinnedRequest(replaying(renamed, receive), Sampler(publication.policy, publication.version))

    async def score(self, policy: str, token_ids: Sequence[Sequence[int]]) -> tuple[Sampler, Rows]:
        """Return which version is served, and its log-probabilities of the sequences, in nats."""
        adapter = self._policies[policy].live
        async with (
            self._rw_lock.reading(),
            self._adapters.running_on(adapter) if adapter is not None else nullcontext(),
        ):
            rows = await score(self._engine, token_ids, adapter and adapter.request)
        return Sampler(policy, adapter.publication.version if adapter is not None else 0), rows

    async def sleep(self, level: int) -> None:
        """Release the GPU memory until ``wake``: running requests are drained first, and new ones wait.

        Raises:
            DrainTimeout: running requests did not end.
        """
        async with self._one_at_a_time:
            await self._sleep.begin(level, self._drain_timeout_s, self._abort_running)

    async def wake(self) -> None:
        """Take the memory back, prove that each live adapter still serves what it served, and let requests in.

        Raises:
            EngineUnproven: an adapter does not.
        """
        async with self._one_at_a_time, self._sleep.ending() as level:
            for policy in self._policies.values() if level else ():
                await self._prove_again(policy)

    async def _prove_again(self, policy: _Policy) -> None:
        live = policy.live
        before = live and policy.history.served_scores(live.publication.probe)
        if live is None or before is None:
            return
        publication = live.publication
        now = await score(self._engine, publication.probe.token_ids, live.request)
        # Requests may have run during the earlier scoring, which changes the last bits of the scores: the comparison is
        # therefore not exact, unlike that of ``Publisher``, where nothing else runs.
        if (reason := compare(before, now).refusal(publication.tolerance)) is not None:
            raise EngineUnproven(f"{publication.name} is not what it was after the engine slept ({reason})")

    async def _abort_running(self) -> None:
        await self._engine.pause_generation(mode="abort", clear_cache=False)
        await self._engine.resume_generation()

    async def publish(self, publication: Publication) -> PublicationReport:
        """Send new requests to the publication from now on, or report why not and keep serving the previous version."""
        async with self._one_at_a_time:
            policy = self._policies.get(publication.policy, _Policy())
            if self._sleep.level:
                return self._refused(publication, policy, _ASLEEP, time.monotonic())
            if policy.live is not None and policy.report is not None and policy.live.publication == publication:
                return policy.report
            started = time.monotonic()
            if policy.live is not None and policy.version == publication.version:
                reason = f"version {publication.version} is being served with other values; a version never changes"
                return self._refused(publication, policy, reason, started)
            tried = await self._try(publication, policy)
            if tried.adapter is None:
                return self._refused(publication, policy, tried.reason, started, tried)
            before, policy.live = policy.live, tried.adapter
            if before is not None:
                self._adapters.retire(before)
            assert tried.verdict is not None
            policy.history.accept(publication, tried.verdict)
            policy.report = tried.report(publication.version, started)
            log_outcome(publication, policy.report)
            return policy.report

    async def hold(self, publication: Publication) -> PublicationReport:
        """Load an old version alongside the live one, for requests that ask for it."""
        async with self._one_at_a_time:
            policy = self._policies.get(publication.policy, _Policy())
            started = time.monotonic()
            if self._sleep.level:
                return self._refused(publication, policy, _ASLEEP, started)
            tried = await self._try(publication, _Policy())  # without a history: it did not move from the live version
            if tried.adapter is None:
                return self._refused(publication, policy, tried.reason, started, tried)
            if (before := policy.held.pop(publication.version, None)) is not None:
                self._adapters.retire(before)
            policy.held[publication.version] = tried.adapter
            report = tried.report(publication.version, started)
            log_outcome(publication, report)
            return report

    async def drop(self, name: str, version: int) -> None:
        """Unload a held version once its last request has ended; do nothing if it is not held."""
        async with self._one_at_a_time:
            policy = self._policies.get(name)
            if policy is not None and (adapter := policy.held.pop(version, None)) is not None:
                self._adapters.retire(adapter)

    async def _try(self, publication: Publication, policy: _Policy) -> "_Tried":
        """Check, load, and prove a publication; one that is not proven is unloaded again."""
        path = Path(publication.path)
        if publication.adapter is None or outside(path, self._weights_directory) is not None:
            return _Tried(outside(path, self._weights_directory) or self.model.refusal(publication, path))
        try:
            folder = await asyncio.to_thread(self._adapters.copy, publication)
        except OSError as error:
            return _Tried(f"the weights cannot be read: {error}")
        reason = await asyncio.to_thread(self.model.refusal, publication, folder / ADAPTER_WEIGHTS)
        if reason is not None:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            return _Tried(reason)
        started = time.monotonic()
        try:
            adapter = await self._adapters.load(publication, folder)
        except Exception as error:
            # Whatever vLLM raises here, the answer is the same: go on without it.
            logger.exception("loading %s failed", publication.name)
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            return _Tried(f"the engine could not load the adapter: {type(error).__name__}: {error}")
        update_s = time.monotonic() - started
        try:
            rows = await score(self._engine, publication.probe.token_ids, adapter.request)
        except EngineError as error:
            self._adapters.retire(adapter)
            return _Tried(f"the engine could not score the probe: {error}", update_s=update_s)
        verdict = policy.history.judge(publication, rows)
        if verdict.reason is not None:
            self._adapters.retire(adapter)
            return _Tried(verdict.reason, verdict=verdict, update_s=update_s)
        return _Tried(None, adapter, verdict, update_s)

    def _refused(
        self,
        publication: Publication,
        policy: _Policy,
        reason: str | None,
        started: float,
        tried: "_Tried | None" = None,
    ) -> PublicationReport:
        report = refused(policy.version, reason, started)
        if tried is not None and tried.verdict is not None:
            report = tried.report(policy.version, started)
        log_outcome(publication, report)
        return report


@dataclass(frozen=True, slots=True)
class _Tried:
    """The result of checking, loading, and scoring."""

    reason: str | None
    adapter: LoadedAdapter | None = None
    """None if it was refused."""
    verdict: Verdict | None = None
    """None if it was not scored."""
    update_s: float = 0.0

    def report(self, version: int, started: float) -> PublicationReport:
        assert self.verdict is not None
        total_s = time.monotonic() - started
        moved = self.verdict.movement
        return PublicationReport(
            accepted=self.adapter is not None,
            version=version,
            reason=self.reason,
            max_abs_diff=self.verdict.agreement.max_abs,
            mean_abs_diff=self.verdict.agreement.mean_abs,
            movement=moved and moved.slope,
            seconds={"gate": 0.0, "update": self.update_s, "probe": total_s - self.update_s, "total": total_s},
        )


def _json_object(body: bytes | None) -> dict[str, Any]:
    try:
        document = json.loads(body or b"")
    except ValueError:
        return {}
    return document if isinstance(document, dict) and isinstance(document.get("model"), str) else {}


def _wanted_version(scope: Message) -> int | None:
    name = VERSION_HEADER.encode("latin-1")
    given = next((value for key, value in scope["headers"] if key == name), b"").decode("latin-1")
    return int(given) if given.isdecimal() else None
