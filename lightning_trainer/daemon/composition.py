"""Every policy of a configuration put together with its engine and its trainer."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.daemon.api.scoring import scoring
from lightning_trainer.daemon.first_start import begin
from lightning_trainer.daemon.hardware.dealing import Deal, deal, dealt, engine_groups
from lightning_trainer.daemon.hardware.loan import GpuLoan, Sleeper
from lightning_trainer.daemon.loop.demonstrations import Demonstrations
from lightning_trainer.daemon.policy_runtime import DaemonContext, PolicyEngine, PolicyRuntime
from lightning_trainer.daemon.publication.old_versions import OldVersionEngine
from lightning_trainer.daemon.rewards.judges import judges_at_work
from lightning_trainer.daemon.watching.selection_watch import overlaps
from lightning_trainer.judges.scoring_engine import Post, engines_of
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.gpu_turns import GpuTurns
from lightning_trainer.serving.host.weights.weight_file import version_bytes
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.settings import EngineSettings, engine_settings, replica_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.serving.supervisor import EngineSupervisor
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import steps
from lightning_trainer.store.worklist import waiting
from lightning_trainer.training.remote import cluster_session, make_trainers
from lightning_trainer.training.settings import TrainerSettings, schedule_notes, trainer_settings
from lightning_trainer.versions.listing import other_policies

if TYPE_CHECKING:
    from lightning_trainer.training.on_ray.session import RaySession


async def compose(context: DaemonContext, stack: AsyncExitStack) -> list[PolicyRuntime]:
    """Return the policies in the order of the configuration, not started.

    Without policies, nothing that computes is even imported: a daemon that only records needs no such package.

    Args:
        context: its configuration names the policies.
        stack: gets the weight files and the judges, which it removes and closes when it is left.

    Raises:
        ModelError: a policy's model cannot be used.
        DatasetError: a file cannot be shown to the stage that names it.
        ConfigError: there are fewer GPUs than the configuration asks for, a file to be shown is missing, or a policy
            was already trained from another model.
    """
    config = context.config
    if not context.store.shared:  # in a shared store, other policies may be another daemon's
        trained = [one.name for one in config.policy if one.train]
        await context.store.write(lambda connection: waiting.only_for(connection, trained))
    if not config.policy:
        return []
    model_dirs = {one.name: await asyncio.to_thread(resolve_model, one.model, model_cache()) for one in config.policy}
    logs = {policy.name: _log_dir(config, policy) for policy in config.policy}
    devices = deal(config)
    settings = [
        await _trainer_settings(config, one, devices, model_dirs[one.name], logs[one.name]) for one in config.policy
    ]
    demonstrations = [await _demonstrations(context, one, model_dirs[one.name]) for one in config.policy]
    session = None if config.ray.address is None else cluster_session(config.ray)
    trainers = make_trainers(
        config.training.backend,
        settings,
        at_once=config.training.policies_at_once,
        gpus=devices.trainers,
        cluster=config.ray,
        session=session,
        of_engines=devices.of_engines,
    )
    local = GpuTurns().engine
    make = local if session is None or config.engine.placement == "local" else _on_cluster(config, session)
    engines = _engines(config, stack, devices, model_dirs, logs, make)
    ways: dict[str, Post] = {}  # filled below: judges are made before the policies whose engines they ask
    judges = await stack.enter_async_context(
        judges_at_work(
            config.judge,
            config.daemon,
            store=context.store,
            sink=context.sink,
            engine_of=engines_of(config, ways.__getitem__),
        )
    )
    policies = [
        PolicyRuntime(
            policy,
            context,
            engine=engines[policy.name],
            trainer=trainer,
            demonstrations=shown,
            judges=judges,
            log_dir=logs[policy.name],
        )
        for policy, trainer, shown in zip(config.policy, trainers, demonstrations, strict=True)
    ]
    if sleepers := _sleepers(config, devices, policies):
        loan = GpuLoan(sleepers, config.engine.sleep_level)
        stack.push_async_callback(loan.close)
        for trainer in trainers:
            trainer.gpu = loan
        for runtime in policies:
            if runtime.engine in sleepers:
                runtime.engine.gpu = loan.for_engines
    ways |= {policy.policy.name: scoring(policy.upstream) for policy in policies}
    await _say_what_is_known(config, policies, context.store, model_dirs)
    return policies


async def _trainer_settings(
    config: Config, policy: PolicyConfig, devices: Deal, model_dir: Path, log_dir: Path
) -> TrainerSettings:
    return trainer_settings(
        config,
        policy,
        model_dir,
        log_dir,
        await _reference_dir(policy),
        gpus_per_process=devices.part_of(policy, config),
        shares_gpu=devices.memory_is_wanted(config),
    )


def _on_cluster(config: Config, session: "RaySession") -> Callable[[EngineSettings], Engine]:
    """Return a function that makes an engine on a node of the cluster."""
    from lightning_trainer.serving.on_ray.engine import EngineCluster

    gpus = config.engine.tensor_parallel_size if config.training.device == "cuda" else 0
    return EngineCluster(config.ray, session, gpus).engine


def _engines(
    config: Config,
    stack: AsyncExitStack,
    devices: Deal,
    model_dirs: Mapping[str, Path],
    logs: Mapping[str, Path],
    make: Callable[[EngineSettings], Engine],
) -> dict[str, PolicyEngine]:
    """Return the engine of each policy, by its name.

    Args:
        stack: gets the weight files.
        model_dirs: by policy.
        logs: by policy; an engine that several policies share writes to the first one's.
        make: makes an engine, not started, on this machine or on the cluster.
    """
    engines: dict[str, PolicyEngine] = {}
    room = sum(
        version_bytes(model_dirs[one.name], config.engine.dtype, one.lora and one.lora.rank) for one in config.policy
    )
    for number, group in enumerate(engine_groups(config.policy)):
        first = group[0].name
        weights = stack.enter_context(WeightFiles(config.daemon.state_dir, version_bytes=room))
        shared = engine_settings(config, group, model_dirs[first], weights.folder, logs[first])
        sleeps = devices.sleeps(number, config)
        each = _replicas_on_gpus(config, shared, devices, number, sleeps)
        replicas = EngineReplicas([EngineSupervisor(one, make=make) for one in each])
        second = _second(config, replace(each[0], log_dir=shared.log_dir), devices, number)
        no_second = devices.no_room(number)
        for policy in group:
            own = weights if len(group) == 1 else weights.of(policy.name)
            engines[policy.name] = PolicyEngine(replicas, make, second, no_second, own, model_dirs[policy.name])
    return engines


def _second(config: Config, first: EngineSettings, devices: Deal, number: int) -> EngineSettings:
    """Return the settings of the engine for a group's candidates and old versions, with the GPUs that it was dealt."""
    gpus = devices.second.get(number)
    if not gpus:
        return first
    configured = replace(first, gpu_memory_utilization=config.engine.gpu_memory_utilization)
    return dealt(configured, gpus, devices.memory_share(gpus), sleeps=devices.second_sleeps(number, config))


def _sleepers(config: Config, devices: Deal, policies: Sequence[PolicyRuntime]) -> list[Sleeper]:
    """Return the engines that give their memory to a trainer during an update: those of each group, and its second."""
    sleepers: list[Sleeper] = []
    for number, group in enumerate(engine_groups(config.policy)):
        runtime = next(one for one in policies if one.policy == group[0])
        if devices.sleeps(number, config):
            sleepers.append(runtime.engine)
        if devices.second_sleeps(number, config) and isinstance(runtime.old_versions, OldVersionEngine):
            sleepers.append(runtime.old_versions)
    return sleepers


def _replicas_on_gpus(
    config: Config, shared: EngineSettings, devices: Deal, number: int, sleeps: bool
) -> list[EngineSettings]:
    """Return the settings of each replica of an engine, with the GPUs that it was dealt.

    Args:
        shared: the settings that all replicas have in common.
        number: of the engine's group in the deal.
    """
    replicas = replica_settings(shared, config.engine.replicas)
    return [
        dealt(one, gpus, devices.memory_share(gpus), sleeps=sleeps)
        for one, gpus in zip(replicas, devices.engines[number], strict=True)
    ]


async def _say_what_is_known(
    config: Config, policies: Sequence[PolicyRuntime], store: Store, model_dirs: Mapping[str, Path]
) -> None:
    """Tell each policy's progress how many steps are done, which runs read while engines start, and what a person
    should hear: overlapping patterns, notes on its schedule, and what was recorded before."""
    shared_agents = overlaps(config.policy)
    for runtime in policies:
        policy = runtime.policy
        for sentence in (*shared_agents.get(policy.name, ()), *schedule_notes(config, policy)):
            runtime.progress.say(sentence)
        if (note := _what_of_images(policy, sees=runtime.image_token is not None)) is not None:
            runtime.progress.say(note)
        if (note := await begin(policy, model_dirs[policy.name], store)) is not None:
            runtime.progress.say(note)
        runtime.progress.steps_done = await store.scan(partial(steps.last_done, policy=policy.name))
        if not runtime.progress.steps_done and not store.shared:  # if shared, the others may be another daemon's
            named = [one.name for one in config.policy]
            if (note := await store.scan(partial(other_policies, named=named))) is not None:
                runtime.progress.say(note)


def _what_of_images(policy: PolicyConfig, *, sees: bool) -> str | None:
    """Return what becomes of prompts with images if the model and ``non_text`` disagree; None if they agree."""
    if sees and policy.non_text == "drop":
        return (
            f"the model of policy {policy.name!r} sees images, and calls with images are answered and not trained: "
            'write non_text = "keep" to train them'
        )
    if not sees and policy.non_text == "keep":
        return (
            f'policy {policy.name!r} has non_text = "keep", and its model {policy.model} reads text alone: calls with '
            "images are refused, and those that others answered are not trained"
        )
    return None


async def _reference_dir(policy: PolicyConfig) -> Path | None:
    """Return the folder of the frozen reference model; None if none but the policy's own start is asked for."""
    spec = policy.reference_model
    if spec is None:
        return None
    return await asyncio.to_thread(resolve_model, spec, model_cache())


async def _demonstrations(context: DaemonContext, policy: PolicyConfig, model_dir: Path) -> Demonstrations:
    config, name = context.config, policy.name
    done = await context.store.scan(lambda connection: steps.last_step(connection, name))
    demonstrations = Demonstrations(policy, seed=config.training.seed)
    await asyncio.to_thread(demonstrations.read, model_dir, config.engine_of(policy).chat_template, done=done)
    return demonstrations


def _log_dir(config: Config, policy: PolicyConfig) -> Path:
    """Return the folder that a policy's engine and trainer write logs to; several policies have a folder each."""
    logs = config.daemon.state_dir / "logs"
    return logs if len(config.policy) == 1 else logs / policy.name
