"""The daemon's life: what starts in which order, and how all of it stops.

HTTP comes up first, so that spans are accepted while engine and trainer are still starting; calls wait at the gateway.
Stopping goes backwards and leaves no process, port or shared-memory file behind.
"""

import asyncio
import contextlib
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from lightning_instrumentation.access.known import KnownDaemon
from lightning_instrumentation.redaction.rules import redactor

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config, GatewayConfig
from lightning_trainer.daemon.access.identity import challenge_router, identity_of_daemon, leave_to_its_owner
from lightning_trainer.daemon.access.token import token_of_daemon, told_to_clients
from lightning_trainer.daemon.announcement import alone_in, announced
from lightning_trainer.daemon.api.explaining import explaining_router
from lightning_trainer.daemon.api.feedback import feedback_api, still_in
from lightning_trainer.daemon.api.health import health_router
from lightning_trainer.daemon.api.judging import judging_router
from lightning_trainer.daemon.api.labels import labels_router
from lightning_trainer.daemon.api.pausing import pausing_router
from lightning_trainer.daemon.api.prompts import prompts_router
from lightning_trainer.daemon.api.rollback import rollback_router
from lightning_trainer.daemon.api.runs import runs_router, selection_router
from lightning_trainer.daemon.api.scoring import scoring, scoring_router
from lightning_trainer.daemon.api.status import status_router
from lightning_trainer.daemon.api.store import store_router
from lightning_trainer.daemon.composition import compose
from lightning_trainer.daemon.dashboard import LiveDaemon
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.http.tls import Certificate, ShownCertificate, read_certificate, without_tls
from lightning_trainer.daemon.http.trusted_hosts import TrustedHosts, hosts_of_environment, public_name
from lightning_trainer.daemon.loop.checkpoints import repeatable_from
from lightning_trainer.daemon.policy_runtime import DaemonContext, PolicyRuntime
from lightning_trainer.daemon.rewards.feedback import FeedbackSettler
from lightning_trainer.daemon.spools import drain_spools
from lightning_trainer.daemon.state_folder import close_to_others, keep_within_limits
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.dashboard.routes import Dashboard
from lightning_trainer.dashboard.site import Check, Site
from lightning_trainer.gateway.auth import require_token
from lightning_trainer.gateway.calls.slots import Slots
from lightning_trainer.gateway.embeddings import EmbeddingsServer, embeddings_router
from lightning_trainer.gateway.engine.upstream import EngineChoice, EngineEndpoint, Upstream
from lightning_trainer.gateway.http_errors import answer_in_the_callers_shape
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.gateway.routes import gateway_router
from lightning_trainer.ingest.http.feedback import feedback_router
from lightning_trainer.ingest.http.langfuse import langfuse_router
from lightning_trainer.ingest.http.otlp import otlp_router
from lightning_trainer.ingest.http.rewards import rewards_router
from lightning_trainer.ingest.http.rollouts import rollouts_router
from lightning_trainer.ingest.redacting import RedactingSink
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.prompts.proposing import PromptProposers, proposers_at_work
from lightning_trainer.store.places import place_of, store_at
from lightning_trainer.store.store import Store
from lightning_trainer.types import SpanSink

_log = logging.getLogger(__name__)


class Daemon:
    """One run of ``lightning-trainer serve``."""

    def __init__(self, config: Config, *, checks: Callable[[], Sequence[Check]] | None = None) -> None:
        """``checks``: what ``doctor`` finds, for the dashboard."""
        self.config = config
        self._checks = checks
        self.url: str | None = None
        """Where others find it; set as soon as it listens."""
        self.policies: Sequence[PolicyRuntime] = ()
        """In the order of the configuration; set before it listens."""
        self._slots = Slots(config.gateway.max_concurrent)
        self._proposers: PromptProposers | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set, then take everything down.

        Raises:
            ConfigError: the port is taken, the environment names a host wrongly or lacks a token, or the certificate
                cannot be used.
            ModelError: a policy's model cannot be used.
            DatasetError: a file cannot be shown to the stage that names it.
            StoreError: another daemon has the state folder, or a newer version wrote it.
            EngineError: an engine did not start.
            TrainingError: a trainer did not start.
        """
        config = self.config
        state_dir = config.daemon.state_dir
        close_to_others(state_dir)
        token = token_of_daemon(config.daemon)
        config.metrics.given_token()  # refuses a missing token now instead of at the first scrape
        certificate = read_certificate(config.daemon)
        if not config.daemon.loopback and certificate is None:
            _log.warning("%s", without_tls(config.daemon.host))
        async with AsyncExitStack() as stack:
            listener = stack.enter_context(contextlib.closing(bind(config.daemon.host, config.daemon.port)))
            stack.enter_context(alone_in(state_dir))
            port = listener.getsockname()[1]
            here = config.daemon.url(port)
            names = () if certificate is None else certificate.names
            url = config.daemon.url(port, name=public_name(config.daemon, names))
            # A guard's evaluation may be any program, and a certificate is seldom valid for loopback: the program gets
            # a port of its own, without TLS.
            guarded = certificate is not None and any(policy.guard for policy in config.policy)
            inside = [stack.enter_context(contextlib.closing(bind("127.0.0.1", 0)))] if guarded else []
            context = None
            async with _cut_short_by(stop):
                context = await self._open(
                    stack,
                    url=url,
                    guard_url=f"http://127.0.0.1:{inside[0].getsockname()[1]}" if inside else here,
                    token=token,
                )
            if context is None:
                return
            store, sink, census = context.store, context.sink, context.census
            identity = identity_of_daemon(state_dir, here, token)
            identity = identity.shared_as(await store.daemon_id(identity.daemon))
            await asyncio.to_thread(leave_to_its_owner, here, identity)
            self.url = url
            redacting = RedactingSink.of(config.daemon, sink)
            app = self._app(store, redacting, self.policies, token, daemon=identity.daemon, census=census, names=names)
            pem = None if certificate is None else certificate.pem
            known = KnownDaemon(token, pem, identity.daemon, str(state_dir))
            await self._listen(stack, app, (listener, *inside), here, known, certificate)
            _in_background(stack, drain_spools(here, redacting, identity.owners))
            _in_background(stack, keep_within_limits(store))
            if config.metrics.otlp is not None:
                from lightning_trainer.dashboard.otlp_metrics import OtlpMetrics

                _in_background(stack, OtlpMetrics(app.state.site, config.metrics.otlp).run(), name="metrics by OTLP")
            _in_background(stack, FeedbackSettler(config.feedback, store, sink).run())
            _in_background(stack, census.get())  # so that the first request is answered
            if await self._start_policies(stack, stop):
                await self._run_policies(stack, stop)

    async def _open(self, stack: AsyncExitStack, *, url: str, guard_url: str, token: str | None) -> DaemonContext:
        """Open the store, which may bring it up to date, and make the policies, which may download their models."""
        config = self.config
        store = await stack.enter_async_context(store_at(place_of(config), config.store))
        context = DaemonContext(
            config=config,
            store=store,
            sink=NotifyingStore(store),
            census=LiveCensus(store),
            url=url,
            guard_url=guard_url,
            token=token,
            make_upstream=self._upstream,
        )
        self._proposers = await stack.enter_async_context(proposers_at_work(store, config.prompt))
        self.policies = await compose(context, stack)
        store.retention.wanted_by = lambda: [one.policy.name for one in self.policies if one.takes_attempts]
        store.retention.repeatable_from = partial(repeatable_from, config.shared_dir / "checkpoints")
        return context

    async def _listen(
        self,
        stack: AsyncExitStack,
        app: FastAPI,
        sockets: Sequence[socket.socket],
        here: str,
        known: KnownDaemon,
        certificate: Certificate | None,
    ) -> None:
        """Serve HTTP, and tell this user's clients so, until the stack is left.

        Args:
            sockets: the daemon's, and those without TLS for programs that it starts itself.
            here: its URL on this machine.
        """
        config = self.config.daemon
        shown = None if certificate is None else ShownCertificate(config, certificate)
        # First: a client that could connect before it knew the token would be refused.
        tell = stack.enter_context(told_to_clients({here, self.url or here}, known, lasting=config.port != 0))
        tls = None if shown is None else lambda: shown.now.context
        await stack.enter_async_context(serving(app, sockets[0], tls=tls, inside=sockets[1:]))
        stack.enter_context(announced(config.state_dir / "daemon.json", here))
        if shown is not None:
            _in_background(stack, shown.keep_fresh(lambda new: tell(new.pem)))

    async def _start_policies(self, stack: AsyncExitStack, stop: asyncio.Event) -> bool:
        """Start every engine and every trainer; False when stopped first."""
        engines = {id(policy.engine): policy.engine for policy in self.policies}.values()
        for policy in self.policies:
            stack.push_async_callback(policy.stop)
        for engine in engines:
            stack.push_async_callback(engine.stop)
        for policy in self.policies:
            await policy.resume()
        starting = (*(engine.start() for engine in engines), *(policy.start() for policy in self.policies))
        return await _unless(stop, asyncio.gather(*starting))

    async def _run_policies(self, stack: AsyncExitStack, stop: asyncio.Event) -> None:
        """Train until stopped, or until a loop ends by itself; calls in flight may end before their engines do."""
        loops = [asyncio.create_task(policy.run(), name=f"loop of {policy.policy.name}") for policy in self.policies]
        for loop in loops:
            stack.push_async_callback(_ended(loop))
        stopped = asyncio.create_task(stop.wait())
        await asyncio.wait({stopped, *loops}, return_when=asyncio.FIRST_COMPLETED)
        for loop in loops:
            if loop.done():
                loop.result()  # a bug or a dead engine must not pass silently
        drained = asyncio.create_task(self._slots.drain(self.config.gateway.drain_timeout_s))
        stack.push_async_callback(_ended(drained))
        for policy, loop in zip(self.policies, loops, strict=True):
            await _ended(loop)()
            await policy.save()
        await drained

    def _app(
        self,
        store: Store,
        sink: SpanSink,
        policies: Sequence[PolicyRuntime],
        token: str | None,
        *,
        daemon: str = "",
        census: LiveCensus | None = None,
        names: Sequence[str] = (),
    ) -> FastAPI:
        """Return the HTTP application; ``names``: host names that the daemon's certificate is for."""
        config = self.config
        app = FastAPI(title="lightning-trainer", docs_url=None, redoc_url=None, openapi_url=None)
        listed = (*config.daemon.trusted_hosts, *hosts_of_environment(), *names)
        answer_in_the_callers_shape(app)
        app.add_middleware(TrustedHosts, host=config.daemon.host, listed=listed)
        guarded = [Depends(require_token(token))]
        for router in self._guarded_routers(store, sink, policies, census):
            app.include_router(router, dependencies=guarded)
        site = Site(
            config,
            store,
            census or LiveCensus(store),
            self.url or f"http://{config.daemon.host}:{config.daemon.port}",
            LiveDaemon(policies, store, sink),
            self._checks,
        )
        app.state.site = site
        app.include_router(Dashboard(site, token).router())
        # These take no token: a supervisor that asks for health has none, and a client that has one asks for the
        # daemon's proof before it sends the token.
        health = health_router(policies, store, lambda: self._slots.draining)
        for router in (health, challenge_router(token, daemon)):
            app.include_router(router)
        return app

    def _guarded_routers(
        self, store: Store, sink: SpanSink, policies: Sequence[PolicyRuntime], census: LiveCensus | None
    ) -> tuple[APIRouter, ...]:
        """Return the routes that require the token."""
        config = self.config
        not_kept: Counter[str] = Counter()
        rollbacks = {policy.policy.name: policy.rollbacks for policy in policies}
        ways = {policy.policy.name: scoring(policy.upstream) for policy in policies}
        gateway = gateway_router(
            [_served(policy, sink, self.config.store.media_size_each) for policy in policies],
            sink,
            max_body_bytes=config.gateway.max_body_bytes,
            slots=self._slots,
        )
        return (
            otlp_router(sink, max_body_bytes=config.daemon.max_body_bytes, not_kept=not_kept),
            rewards_router(store, sink),
            feedback_router(store, sink, config.feedback),
            langfuse_router(store, sink, config.feedback),
            rollouts_router(store, sink),
            gateway,
            embeddings_router(_embeddings(config.gateway), max_body_bytes=config.gateway.max_body_bytes),
            status_router(policies, store=store, not_kept=not_kept, census=census),
            explaining_router(store, config),
            store_router(store, rollbacks),
            feedback_api(store, config.feedback, partial(still_in, config)),
            runs_router(store),
            rollback_router(rollbacks),
            pausing_router(store, rollbacks),
            labels_router(store, sink, config),
            prompts_router(store, redactor(config.daemon.redact), self._proposers),
            scoring_router(ways),
            judging_router(store, sink, config, engines_of(config, ways.__getitem__)),
            selection_router(config.policy, gateway),
        )

    def _upstream(self, engine: EngineEndpoint | EngineChoice) -> Upstream:
        """Return the gateway's way to an engine, or to several."""
        gateway = self.config.gateway
        return Upstream(
            engine,
            queue_timeout_s=gateway.queue_timeout_s,
            silence_timeout_s=gateway.silence_timeout_s,
            connections=gateway.max_concurrent + 8,
        )


def _served(policy: PolicyRuntime, sink: SpanSink, media_size_each: float | None) -> ServedPolicy:
    """Return what the gateway knows of a policy."""
    return ServedPolicy(
        policy.policy.name,
        policy.upstream,
        policy.policy.claims,
        old_versions=policy.old_versions,
        canary=policy.canary_route,
        shadow=policy.shadow(sink),
        sees=policy.image_token is not None,
        media_size_each=media_size_each,
    )


def _embeddings(gateway: GatewayConfig) -> EmbeddingsServer | None:
    return None if gateway.embeddings is None else EmbeddingsServer(gateway.embeddings, gateway.embeddings_key)


def _in_background(stack: AsyncExitStack, work: Coroutine[Any, Any, object], name: str | None = None) -> None:
    """Let ``work`` run until it ends or the stack is left."""
    stack.push_async_callback(_ended(asyncio.create_task(work, name=name)))


def _ended(task: asyncio.Task):
    async def end() -> None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task

    return end


@contextlib.asynccontextmanager
async def _cut_short_by(stop: asyncio.Event) -> AsyncIterator[None]:
    """Cancel the block when ``stop`` is set, and continue after the block; threads that it waited for run on."""
    block = asyncio.timeout(None)

    async def cut() -> None:
        await stop.wait()
        block.reschedule(asyncio.get_running_loop().time())

    try:
        async with block:
            cutting = asyncio.create_task(cut())
            try:
                yield
            finally:
                cutting.cancel()
    except TimeoutError:
        if not block.expired():
            raise


async def _unless(stop: asyncio.Event, work: asyncio.Future) -> bool:
    """Wait for ``work`` unless stopped first; return whether it was done."""
    stopped = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({stopped, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
            return True
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
        return False
    finally:
        stopped.cancel()
