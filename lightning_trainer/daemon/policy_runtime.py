"""One policy's share of the daemon: trainer, publisher, versions, metrics and loop, with what others ask of them."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.loop.turn import Turn
from lightning_trainer.daemon.publication.canary import Canary
from lightning_trainer.daemon.publication.guard import PromotionGuard
from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.daemon.publication.old_versions import OldVersionEngine
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.publication.resuming import resume
from lightning_trainer.daemon.publication.version_keeper import VersionKeeper
from lightning_trainer.daemon.rewards.judges import PolicyJudges
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.daemon.watching.selection_watch import watch_selection
from lightning_trainer.errors import TrainerDiedError, TrainingError
from lightning_trainer.gateway.canary_route import CanaryRoute
from lightning_trainer.gateway.engine.upstream import EngineChoice, EngineEndpoint, Upstream
from lightning_trainer.gateway.shadow import Shadow
from lightning_trainer.judges.judging import Judging
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.models.images import image_token_of
from lightning_trainer.models.resolve import vocabulary_of
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.shared_memory import WeightFolder
from lightning_trainer.store.store import Store
from lightning_trainer.training.remote import TrainerClient
from lightning_trainer.types import SpanSink
from lightning_trainer.versions.archive import VersionArchive, archive_root

_log = logging.getLogger(__name__)
_LONGEST_WAIT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonContext:
    """What all policies of a daemon share."""

    config: Config
    store: Store
    sink: NotifyingStore
    """The sink of the store that tells each policy's loop when spans are committed."""
    census: LiveCensus
    """Of the store."""
    url: str
    """Where others find the daemon."""
    guard_url: str
    """Where the programs of guards find the daemon, with any HTTP client and no settings."""
    token: str | None
    """The daemon's token; None: it requires none."""
    make_upstream: Callable[[EngineEndpoint | EngineChoice], Upstream]
    """The gateway's way to an engine."""


@dataclass(frozen=True, slots=True)
class PolicyEngine:
    """The engine that serves a policy, and the files that it takes the policy's weights from."""

    replicas: EngineReplicas
    make: Callable[[EngineSettings], Engine]
    """Returns another engine of that kind, not started."""
    second: EngineSettings
    """The settings of an engine that serves a candidate or an old version."""
    no_second: str | None
    """Why there cannot be such an engine; None if there can."""
    weights: WeightFolder
    model_dir: Path
    """The folder of version 0."""


class PolicyRuntime:
    """One policy at work: call ``resume`` and ``start`` once, ``run`` for as long as the daemon serves, then ``stop``.

    It does not own its engine: policies may share one, and the daemon starts and stops it.
    """

    def __init__(
        self,
        policy: PolicyConfig,
        context: DaemonContext,
        *,
        engine: PolicyEngine,
        trainer: TrainerClient,
        demonstrations: Demonstrations,
        judges: Mapping[str, Judging],
        log_dir: Path,
    ) -> None:
        """
        Args:
            judges: all of the daemon's, by name.
            log_dir: of the policy.
        """
        config, store = context.config, context.store
        self.policy = policy
        self.engine = engine.replicas
        self.trainer = trainer
        self.upstream = context.make_upstream(engine.replicas)
        self.progress = Progress()
        self.metrics = MetricsRecorder(policy.name, store, folder=config.daemon.state_dir, config=config.metrics)
        self.old_versions = _old_versions(policy, engine, config.shared_dir, context.make_upstream)
        canary = policy.canary
        self.canary_route = canary and CanaryRoute(policy.name, share=canary.share, by=canary.by, shadow=canary.shadow)
        self.image_token = image_token_of(engine.model_dir)
        """What stands for images in its model's prompts; None: the model reads text alone."""
        stored = context.sink.watch(policy.name, self.progress)
        self.rollbacks = RollbackRequests(wake=stored)
        self._turn = Turn(policy.name, store=store, holder=context.url, rollbacks=self.rollbacks)
        self._turn_s = config.store.turn_s
        judging = config.versions_that_judge(policy)
        self._keeper = VersionKeeper(
            policy,
            store=store,
            archive=self.old_versions.archive,
            in_use=lambda: judging.union(self.old_versions.in_use),
        )
        self._judges = PolicyJudges(policy, judges, store=store, progress=self.progress)
        self._loop = TrainingLoop(
            LoopContext(
                policy=policy,
                store=store,
                progress=self.progress,
                metrics=self.metrics,
                rollbacks=self.rollbacks,
                stored=stored,
                one_of_several=len(config.policy) > 1,
                vocabulary=vocabulary_of(engine.model_dir),
                image_token=self.image_token,
                judges=self._judges,
            ),
            trainer=trainer,
            publisher=Publisher(
                policy.name,
                store=store,
                trainer=trainer,
                engine=engine.replicas,
                weights=engine.weights,
                keeper=self._keeper,
                guard=self._guard(context, log_dir),
                canary=self._canary(context, judges),
            ),
            checkpoints=CheckpointFolder(config.shared_dir / "checkpoints" / policy.name, keep=policy.keep_checkpoints),
            turn=self._turn,
            demonstrations=demonstrations,
        )
        self._resume = partial(
            resume,
            policy.name,
            store=store,
            archive=self.old_versions.archive,
            weights=engine.weights,
            engine=engine.replicas,
            say=self.progress.say,
        )
        self._watch = partial(watch_selection, policy, config.policy, context.census, self.progress)

    def _guard(self, context: DaemonContext, log_dir: Path) -> PromotionGuard | None:
        guard = self.policy.guard
        if guard is None:
            return None
        return PromotionGuard(
            self.policy.name, guard, self.old_versions, url=context.guard_url, token=context.token, log_dir=log_dir
        )

    def _canary(self, context: DaemonContext, judges: Mapping[str, Judging]) -> Canary | None:
        if self.policy.canary is None or self.canary_route is None:
            return None
        return Canary(
            self.policy,
            self.policy.canary,
            store=context.store,
            route=self.canary_route,
            old_versions=self.old_versions,
            judges=judges,
            sink=context.sink,
            say=self.progress.say,
            interrupted=lambda: self._loop.goes_back(),
            promoted=self.rollbacks.promotes,
        )

    @property
    def takes_attempts(self) -> bool:
        """Whether there will be steps that take what is recorded."""
        later = self.policy.train and self.policy.takes_attempts_after(self.progress.steps_done)
        return later and self.progress.phase not in (Phase.FINISHED, Phase.SERVING)

    def shadow(self, sink: SpanSink) -> Shadow | None:
        """Return what lets candidates answer alongside the live version; None if they answer in its place, or never.

        Args:
            sink: where the gateway's records of calls go.
        """
        canary = self.policy.canary
        if canary is None or self.canary_route is None or not canary.shadow:
            return None
        return Shadow(self.canary_route, self.old_versions, sink, at_once=canary.shadow_at_once)

    async def resume(self) -> None:
        """Have the engine serve the version that was served last as soon as it starts; call this before its start.

        Raises:
            StoreError: the store cannot be read.
        """
        await self._resume()

    async def start(self) -> None:
        """Start the trainer and the metrics.

        Raises:
            TrainingError: the trainer did not start.
            MissingExtraError: a package is not installed.
        """
        await asyncio.gather(start_trainer(self.trainer, self.progress.say), self.metrics.start(self.progress.say))

    async def run(self) -> None:
        """Train until cancelled."""
        beside = [asyncio.create_task(self._watch()), asyncio.create_task(self._turn.keep(self._turn_s))]
        try:
            await self._loop.run()
        finally:
            await _end(beside)

    async def save(self) -> None:
        """Write a last checkpoint, so that the next start repeats nothing; not in the middle of a step."""
        keeping = asyncio.create_task(self._turn.keep(self._turn_s))  # the next daemon begins from the checkpoint
        try:
            async with asyncio.timeout(60):
                await self._loop.save()
        except (TrainingError, TimeoutError) as error:
            _log.warning(
                "no checkpoint of %s at shutdown (%s); the next start repeats the steps since the last one",
                self.policy.name,
                error,
            )
        finally:
            await _end([keeping])

    async def stop(self) -> None:
        """Take down what belongs to the policy alone; call it when the loop has ended."""
        await self._turn.give_up()
        await self._judges.close()
        await self._keeper.settled()
        await self.old_versions.stop()
        await self.trainer.close()
        await self.metrics.close()


async def start_trainer(trainer: TrainerClient, say: Callable[[str], None], first_wait_s: float = 1.0) -> None:
    """Start a trainer; if it is killed meanwhile, start another one: a trainer that cannot start would say why.

    The wait before another start doubles each time, up to a minute; calls are served and recorded meanwhile.

    Raises:
        TrainingError: the trainer did not start, and said why.
    """
    start, wait_s = partial(_start_on_its_gpu, trainer), first_wait_s
    while True:
        try:
            return await start()
        except TrainerDiedError as error:
            sentence = f"the trainer did not live to its start and another one is started in {wait_s:.0f} s ({error})"
        say(sentence)
        _log.error("%s", sentence)
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        start = trainer.restart


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await task


async def _start_on_its_gpu(trainer: TrainerClient) -> None:
    async with trainer.gpu:
        await trainer.start()


def _old_versions(
    policy: PolicyConfig,
    engine: PolicyEngine,
    shared_dir: Path,
    make_upstream: Callable[[EngineEndpoint | EngineChoice], Upstream],
) -> OldVersionEngine | OldAdapters:
    archive = VersionArchive(archive_root(shared_dir, policy.name), model_dir=engine.model_dir, model=policy.model)
    idle_s = policy.versions.idle_timeout_s
    if policy.lora is None:
        return OldVersionEngine(
            archive,
            engine.second,
            make_engine=engine.make,
            idle_timeout_s=idle_s,
            make_upstream=make_upstream,
            no_room=engine.no_second,
        )
    return OldAdapters(
        policy.name,
        archive,
        engine.replicas.first,
        engine.weights.folder,
        idle_timeout_s=idle_s,
        make_upstream=make_upstream,
    )
