"""Who gets which GPU: trainers and engines get their own while there are enough, else they take turns on one.

Trainers come first and take GPUs from the front, engines from the back, so that as few as possible meet. If both are on
one GPU, the engine sleeps during an update (``daemon.hardware.loan``). The second engine of a policy that trains all
weights, for candidates and old versions, gets what is left, or shares the first one's GPUs if they have room for it or
candidates are sure to come.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from math import ceil
from typing import TypeAlias

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.hardware import visible_gpus
from lightning_trainer.daemon.hardware.naming import each_by_one_name, listed, require_known, require_there
from lightning_trainer.errors import ConfigError
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.training.settings import base_of

Group: TypeAlias = tuple[PolicyConfig, ...]

# Which policies share an engine, and which a trainer: those that train adapters of one model share a trainer, and an
# engine if its settings are alike as well; a policy that trains full weights has its own.


def engine_groups(policies: Sequence[PolicyConfig]) -> tuple[Group, ...]:
    """Return the policies by engine, in the order of the configuration."""
    return _grouped(policies, lambda policy: None if policy.lora is None else (policy.model, policy.engine))


def trainer_groups(config: Config) -> tuple[Group, ...]:
    """Return the policies by trainer, in the order of the configuration, frozen ones as well."""
    return _grouped(config.policy, partial(base_of, config))


def _grouped(policies: Sequence[PolicyConfig], shared_by: Callable[[PolicyConfig], Hashable]) -> tuple[Group, ...]:
    groups: dict[Hashable, list[PolicyConfig]] = {}
    for policy in policies:
        key = shared_by(policy)
        groups.setdefault(("alone", policy.name) if key is None else ("shared", key), []).append(policy)
    return tuple(map(tuple, groups.values()))


def has_candidates(policy: PolicyConfig) -> bool:
    """Whether a second engine serves each new version while its guard or canary compares it with the live one."""
    return policy.lora is None and (policy.guard is not None or policy.canary is not None)


_ALONE, _BESIDE_A_TRAINER = 0.9, 0.8
"""An engine's share of a GPU's memory. An idle trainer keeps its CUDA context there, and what cannot be moved."""


@dataclass(frozen=True, slots=True)
class Deal:
    """The GPUs of a configuration on this machine."""

    trainers: tuple[str, ...] = ()
    """The GPUs that Ray is started with; none if trainers compute on the CPU."""
    gpus_per_process: float = 0.0
    """What each trainer process asks Ray for."""
    engines: tuple[tuple[tuple[str, ...] | None, ...], ...] = ()
    """By engine group and replica; None: it sees what the daemon sees."""
    part_of_frozen: float = 0.0
    """What each process of a policy that is not trained asks Ray for: it writes what is served first, and then ends."""
    second: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """By engine group, the GPUs of its second engine; none if there is no room. A group that is absent has a second
    engine that sees what the daemon sees, or never has one."""

    def sleeps(self, group: int, config: Config) -> bool:
        """Whether the engines of a group give their memory to a trainer during an update."""
        if config.engine.sleep != "auto":
            return config.engine.sleep
        return any(map(self._meet_trainers, self.engines[group]))

    def second_sleeps(self, group: int, config: Config) -> bool:
        """Whether the second engine of a group gives its memory to a trainer during an update."""
        return config.engine.sleep is not False and self._meet_trainers(self.second.get(group))

    def part_of(self, policy: PolicyConfig, config: Config) -> float:
        """Return what each process of a policy's trainer asks Ray for."""
        group = next(group for group in trainer_groups(config) if policy in group)
        return self.gpus_per_process if any(one.train for one in group) else self.part_of_frozen

    @property
    def of_engines(self) -> frozenset[str]:
        """Return the GPUs of all engines."""
        return frozenset(chain.from_iterable(self._each))

    @property
    def shares(self) -> bool:
        """Whether any GPU has both a trainer and an engine."""
        return bool(self.of_engines & set(self.trainers))

    def memory_is_wanted(self, config: Config) -> bool:
        """Whether an engine or another trainer needs a trainer's GPU memory while it computes nothing."""
        several = sum(any(policy.train for policy in group) for group in trainer_groups(config)) > 1
        return self.shares or (several and 0 < self.gpus_per_process <= 1 / 2)

    def memory_share(self, own: Sequence[str] | None) -> float | None:
        """Return the share of its GPUs' memory that an engine may take; None: vLLM's own choice."""
        if own is None:
            return None
        return self._share(own, max(map(self.engines_on, own)))

    def share_beside_another(self, own: Sequence[str]) -> float:
        """Return the share that would leave room for one more engine on these GPUs."""
        return self._share(own, 1 + max(map(self.engines_on, own)))

    def engines_on(self, gpu: str) -> int:
        """Return how many engines a GPU may have at once."""
        return sum(gpu in own for own in self._each)

    def no_room(self, group: int) -> str | None:
        """Return why there is no second engine for a group and what to do; None if there may be one."""
        first = self.engines[group][0]
        if first is None or self.second.get(group) != ():
            return None
        return (
            "an old version is answered by a second engine, and no GPU has room for it; set gpu_memory_utilization = "
            f"{self.share_beside_another(first):g} in [engine], which leaves it room beside the first one, or add a GPU"
        )

    @property
    def _each(self) -> list[tuple[str, ...]]:
        """Return the GPUs of every engine."""
        return [own or () for own in (*chain.from_iterable(self.engines), *self.second.values())]

    def _share(self, own: Sequence[str], engines: int) -> float:
        return round((_BESIDE_A_TRAINER if self._meet_trainers(own) else _ALONE) / engines, 3)

    def _meet_trainers(self, own: Sequence[str] | None) -> bool:
        return not set(own or ()).isdisjoint(self.trainers)

    def lines(self, config: Config) -> list[str]:
        """Return the deal in words, a line for each part of it."""
        said = []
        on_cluster = config.engine.placement == "cluster"
        if config.ray.address is not None:
            said.append(f"trainers: the Ray cluster at {config.ray.address}")
        elif self.trainers:
            said.append(f"trainers: GPU {', '.join(self.trainers)}")
        for group in trainer_groups(config):
            if len(group) > 1:
                said.append(f"one trainer for the adapters of {', '.join(policy.name for policy in group)}")
        for number, (group, each) in enumerate(zip(engine_groups(config.policy), self.engines, strict=True)):
            names = ", ".join(policy.name for policy in group)
            for index, own in enumerate(each, start=1):
                which = f" {index}" if len(each) > 1 else ""
                sleeping = ", asleep during updates" if own and self.sleeps(number, config) else ""
                where = f"the Ray cluster at {config.ray.address}" if on_cluster else "no GPU"
                said.append(f"engine{which} of {names}: {'GPU ' + ', '.join(own) if own else where}{sleeping}")
            if has_candidates(group[0]) and number in self.second:
                sleeping = ", asleep during updates" if self.second_sleeps(number, config) else ""
                said.append(f"engine of {names}'s candidates: GPU {', '.join(self.second[number])}{sleeping}")
        return said


def deal(config: Config, gpus: Sequence[str] | None = None) -> Deal:
    """Deal out the GPUs of this machine.

    Args:
        gpus: those of the machine; None: look for them.

    Raises:
        ConfigError: there are not enough, or the configuration names one that the machine does not have.
    """
    config, there = each_by_one_name(config, visible_gpus() if gpus is None else tuple(gpus))
    training, engine, groups = config.training, config.engine, engine_groups(config.policy)
    require_there("training", training.gpus, there)
    require_there("engine", engine.gpus, there)
    started = len(trainer_groups(config))
    trained = sum(any(policy.train for policy in group) for group in trainer_groups(config))
    if training.world_size > 1 or not trained:
        trained = started  # trainers of several processes do not share a GPU: Ray might put two of them on one
    on_cluster = config.ray.address is not None
    engines_on_cluster = engine.placement == "cluster"
    wanted = trained * training.world_size if training.device == "cuda" and not on_cluster else 0
    if wanted and not there:
        raise ConfigError(
            '[training] device = "cuda", and this machine has no GPU that may be used; set device = "cpu"'
        )
    if there and wanted and not engines_on_cluster:
        require_known("engine", engine.gpus, "training", training.gpus, there)
        require_known("training", training.gpus, "engine", engine.gpus, there)
    size, replicas = engine.tensor_parallel_size, engine.replicas
    if size > 1 and there and not engines_on_cluster and size > len(engine.gpus or there):
        raise ConfigError(f"[engine] tensor_parallel_size = {size}, and there is {listed(there)}; lower it")
    needed = len(groups) * replicas * size if there and not engines_on_cluster else 0
    trainers = _of_trainers(config, there, wanted, needed)
    if wanted and training.world_size > len(trainers):
        raise ConfigError(
            f"[training] world_size = {training.world_size} needs as many GPUs, and there is {listed(trainers)} for "
            "it; lower it"
        )
    if wanted > len(trainers) and training.world_size > 1:
        raise ConfigError(
            f"{trained} trainers with world_size = {training.world_size} need {wanted} GPUs, and there is "
            f"{listed(trainers)} for them; those of several processes share none"
        )
    free = [gpu for gpu in there if gpu not in trainers] if engine.gpus is None else list(engine.gpus)
    # The trainers' own come last: engines take them only if no others are left.
    order = free if engine.gpus is not None or len(free) >= min(needed, len(there)) else [*free, *reversed(trainers)]
    own = order and not engines_on_cluster
    given = [_run(order, number * size, size) if own else None for number in range(len(groups) * replicas)]
    engines = tuple(tuple(given[number * replicas : (number + 1) * replicas]) for number in range(len(groups)))
    if on_cluster and training.device == "cuda":
        part = frozen = training.gpus_per_process or 1.0
    else:
        part, frozen = _parts(config, wanted, started * training.world_size, len(trainers))
    found = Deal(trainers, part, engines, frozen)
    found = _with_second_engines(config, found, [gpu for gpu in order if gpu not in {*trainers, *found.of_engines}])
    _require_room(config, found)
    return found


def _with_second_engines(config: Config, found: Deal, left: Sequence[str]) -> Deal:
    """Deal out second engines: first those that are sure to be started.

    Args:
        left: GPUs that have neither trainer nor engine.
    """
    groups, engine = engine_groups(config.policy), config.engine
    size, share = engine.tensor_parallel_size, engine.gpu_memory_utilization
    for number in sorted(range(len(groups)), key=lambda number: not has_candidates(groups[number][0])):
        first, policy = found.engines[number][0], groups[number][0]
        if first is None or policy.lora is not None:
            continue
        if len(left) >= size:
            own, left = tuple(left[:size]), left[size:]
        else:
            fits = share is not None and share <= found.share_beside_another(first)
            own = first if fits or has_candidates(policy) else ()
        found = replace(found, second={**found.second, number: own})
    return found


def _require_room(config: Config, found: Deal) -> None:
    """Check that GPUs have the memory that the configuration gives each engine. Raises ConfigError: one does not."""
    share = config.engine.gpu_memory_utilization or 0.0
    for gpu in sorted(found.of_engines):
        if (engines := found.engines_on(gpu)) * share > 1:
            candidates = ", one for a guard's or canary's candidates" * any(gpu in own for own in found.second.values())
            raise ConfigError(
                f"[engine] gpu_memory_utilization = {share:g} is for each of {engines} engines on GPU {gpu}{candidates}"
                f"; set {found.memory_share((gpu,)):g}, or leave it out"
            )


def _parts(config: Config, wanted: int, started: int, gpus: int) -> tuple[float, float]:
    """Return what a process of a trained policy and one of a frozen policy ask Ray for.

    Ray puts each process on the first GPU with room. All of the frozen ones together ask for a tenth of a GPU, which
    trained ones leave free on each.

    Args:
        wanted: processes that get GPUs.
        started: all processes.

    Raises:
        ConfigError: there is no room for what the configuration asks for.
    """
    training = config.training
    if not wanted:
        return 0.0, 0.0
    if training.gpus_per_process is not None:
        room = gpus * int(1 / training.gpus_per_process + 1e-6)
        if room < started and training.backend == "ray":
            raise ConfigError(
                f"[training] gpus_per_process = {training.gpus_per_process:g} has room for {room} of {started} trainer "
                f"processes on {gpus} GPU{'s' * (gpus != 1)}; lower it, or leave it out"
            )
        return training.gpus_per_process, training.gpus_per_process
    at_once, frozen = ceil(wanted / gpus), started - wanted
    if not frozen:
        return 1000 // at_once / 1000, 1000 // at_once / 1000
    return 900 // at_once / 1000, 1000 // frozen / 10_000


def dealt(
    settings: EngineSettings, own: tuple[str, ...] | None, share: float | None, *, sleeps: bool
) -> EngineSettings:
    """Return the settings of an engine with its GPUs; a share of memory that the configuration sets stays."""
    utilization = settings.gpu_memory_utilization or share
    return replace(settings, gpus=own, gpu_memory_utilization=utilization, sleeps=sleeps)


def _of_trainers(config: Config, there: Sequence[str], wanted: int, needed: int) -> tuple[str, ...]:
    if not wanted:
        return ()
    if config.training.gpus is not None:
        return config.training.gpus
    engines = set(config.engine.gpus or ())
    left = [gpu for gpu in there if gpu not in engines]
    room = len(left) if engines else len(there) - needed
    # Without room for all, single processes share what the engines leave; without any, the engines' own.
    least = config.training.world_size
    count = wanted if room >= wanted else room if room >= least else min(wanted, len(left or there))
    return tuple((left or list(there))[:count])


def _run(order: Sequence[str], start: int, size: int) -> tuple[str, ...]:
    """Return ``size`` GPUs in a row, from the front again after the end."""
    return tuple(order[(start + offset) % len(order)] for offset in range(size))
