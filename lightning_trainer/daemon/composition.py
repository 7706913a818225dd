"""Every policy of a configuration put together with its engine and its trainer."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from lightning_trainer.agents.live import LiveCensus
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.daemon.api.scoring import scoring
from lightning_trainer.daemon.hardware.dealing import deal, dealt, engine_groups
from lightning_trainer.daemon.hardware.loan import GpuLoan
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.daemon.policy_runtime import PolicyEngine, PolicyRuntime
from lightning_trainer.daemon.rewards.judges import judges_at_work
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.selection_watch import overlaps
from lightning_trainer.gateway.engine.endpoints import EngineChoice, EngineEndpoint
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.judges.scoring_engine import Post, engines_of
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.settings import engine_settings, replica_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.store.store import Store
from lightning_trainer.training.remote import make_trainers
from lightning_trainer.training.settings import schedule_notes, trainer_settings


async def compose(
    config: Config,
    stack: AsyncExitStack,
    *,
    store: Store,
    sink: NotifyingStore,
    census: LiveCensus,
    url: str,
    token: str | None,
    make_upstream: Callable[[EngineEndpoint | EngineChoice], Upstream],
) -> list[PolicyRuntime]:
    """Return the policies in the order of the configuration; nothing of them is started.

    Without any, nothing that computes is even imported: a daemon that only records needs no such package.

    Args:
        stack: gets the files of weights and the judges, which go when it is left.
        url: where the daemon listens.
        token: what opens it.
        make_upstream: the gateway's way to an engine.

    Raises:
        ModelError: a policy's model cannot be used.
        DatasetError: what a stage is to be shown cannot be.
        ConfigError: there are not as many GPUs as it asks for.
    """
    if not config.policy:
        return []
    model_dirs = {
        policy.name: await asyncio.to_thread(resolve_model, policy.model, model_cache()) for policy in config.policy
    }
    logs = {policy.name: _log_dir(config, policy) for policy in config.policy}
    devices = deal(config)
    settings = [
        trainer_settings(
            config,
            one,
            model_dirs[one.name],
            logs[one.name],
            await _reference_dir(one),
            gpus_per_process=devices.gpus_per_process,
            shares_gpu=devices.shares,
        )
        for one in config.policy
    ]
    shown = [await _demonstrations(config, one, model_dirs[one.name]) for one in config.policy]
    trainers = make_trainers(
        config.training.backend,
        settings,
        at_once=config.training.policies_at_once,
        gpus=devices.trainers,
        cluster=config.ray,
    )
    engines: dict[str, PolicyEngine] = {}
    sleepers: list[EngineReplicas] = []
    room = sum(map(_weight_bytes, model_dirs.values()))
    for number, group in enumerate(engine_groups(config.policy)):
        first = group[0]
        weights = stack.enter_context(WeightFiles(config.daemon.state_dir, version_bytes=room))
        of_engine = engine_settings(config, group, model_dirs[first.name], weights.folder, logs[first.name])
        sleeps = devices.sleeps(number, config)
        each = [
            dealt(one, own, devices.memory_share(own), sleeps=sleeps)
            for one, own in zip(
                replica_settings(of_engine, config.engine.replicas), devices.engines[number], strict=True
            )
        ]
        of_engine = replace(each[0], log_dir=of_engine.log_dir)
        replicas = EngineReplicas([EngineSupervisor(one) for one in each])
        sleepers += [replicas] if sleeps else []
        for policy in group:
            own = weights if len(group) == 1 else weights.of(policy.name)
            engines[policy.name] = PolicyEngine(replicas, of_engine, own, model_dirs[policy.name])
    if sleepers:
        loan = GpuLoan(sleepers, config.engine.sleep_level)
        stack.push_async_callback(loan.close)
        for trainer in trainers:
            trainer.gpu = loan
    ways: dict[str, Post] = {}
    engine_of = engines_of(config, ways.__getitem__)
    judges = await stack.enter_async_context(
        judges_at_work(config.judge, config.daemon, store=store, sink=sink, engine_of=engine_of)
    )
    policies = [
        PolicyRuntime(
            policy,
            config,
            store=store,
            sink=sink,
            engine=engines[policy.name],
            trainer=trainer,
            demonstrations=demonstrations,
            make_upstream=make_upstream,
            census=census,
            url=url,
            token=token,
            log_dir=logs[policy.name],
            judges=judges,
        )
        for policy, trainer, demonstrations in zip(config.policy, trainers, shown, strict=True)
    ]
    ways |= {policy.policy.name: scoring(policy.upstream) for policy in policies}
    said = overlaps(config.policy)
    for policy in policies:
        for sentence in (*said.get(policy.policy.name, ()), *schedule_notes(config, policy.policy)):
            policy.progress.say(sentence)
        recorded = await store.begin_policy(policy.policy.name)
        if recorded:
            policy.progress.say(_what_of_recorded(policy.policy, recorded))
    return policies


def _what_of_recorded(policy: PolicyConfig, rollouts: int) -> str:
    """What a policy that is started for the first time does with what it finds."""
    some = f"{rollouts:,} rollout{'s' * (rollouts != 1)} recorded before policy {policy.name!r} was first started"
    if policy.train_recorded:
        return f"{some}: those are trained too in which an engine of its [[policy.trusted]] answered (train_recorded)"
    return f"{some} stay readable and are not trained: training begins with what comes after"


async def _reference_dir(policy: PolicyConfig) -> Path | None:
    """Return the folder of the frozen model, where another one than the policy's own start is asked for."""
    spec = policy.reference_model
    if spec is None:
        return None
    return await asyncio.to_thread(resolve_model, spec, model_cache())


async def _demonstrations(config: Config, policy: PolicyConfig, model_dir: Path) -> Demonstrations:
    demonstrations = Demonstrations(policy, seed=config.training.seed)
    await asyncio.to_thread(demonstrations.read, model_dir, config.engine.chat_template)
    return demonstrations


def _log_dir(config: Config, policy: PolicyConfig) -> Path:
    """Engine and trainer of each policy write there; several policies have a folder each."""
    logs = config.daemon.state_dir / "logs"
    return logs if len(config.policy) == 1 else logs / policy.name


def _weight_bytes(model_dir: Path) -> int:
    return sum(file.stat().st_size for file in model_dir.glob("*.safetensors"))
