"""An attempt that is played in an environment; its rewards are the sums over its steps."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt

from lightning_trainer.environments.agent import Agent, ChatAgent
from lightning_trainer.environments.limits import Limits, environment_settings, limits_of
from lightning_trainer.environments.loading import digest_of
from lightning_trainer.environments.protocol import HELD_OUT, TRAIN, Environment, Task, nothing_held_out
from lightning_trainer.environments.registry import EnvironmentSpec, check_file_task, launch_of
from lightning_trainer.environments.reward_function import RewardFunction
from lightning_trainer.environments.session import InProcess, Playable, Session
from lightning_trainer.environments.worker.pool import EnvironmentPool
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts.awaiting import result_of
from lightning_trainer.rollouts.run_name import attempt_label

_GRACE_S = 30.0
"""How long after the session's own limit its attempt is given up."""
_SEEDS_OF_A_RUN = 1_000_000
"""Distance between the first tasks of two values of ``seed``."""
_SEEDS_OF_A_NUMBER = 104_729
"""The same between runs of one name; a prime, so that runs in an environment with few tasks begin apart, too."""


class EnvironmentAttempt:
    """An attempt that plays one task: ``Runner(policy, EnvironmentAttempt("frozenlake:4x4", agent))``.

    Args:
        environment: a name (it runs in processes of its own); or a class in this process, instantiated for each
            attempt; or a function that scores an answer (``reward_function.py``).
        agent: acts in the session that it gets.
        limits, folder, python: settings of the environment's processes; ``limits`` and ``folder`` are by default those
            of ``[environments]`` in the ``lightning.toml`` of this folder, as for the command line.
        processes: how many processes of a named environment may run at once; further attempts wait for one.
        timeout_s: limit of one attempt, including its model calls.
        seed: seed of the order of training tasks.

    Raises:
        LightningError: there is no such environment, it does not start, or that configuration cannot be used.
    """

    def __init__(
        self,
        environment: str | type[Environment] | Callable[..., Any],
        agent: Agent,
        *,
        limits: Limits | None = None,
        folder: Path | None = None,
        python: str | None = None,
        processes: int = 64,
        timeout_s: float = 120.0,
        seed: int = 0,
    ) -> None:
        self._agent = agent
        self._timeout_s = timeout_s
        self.longest_s = timeout_s + _GRACE_S
        """Time after which an attempt is given up, including its wait for a process."""
        self._seed = seed
        self._pool: EnvironmentPool | None = None
        self._made: Callable[[], Environment] | None = None
        sizes: Mapping[str, int] | None = None
        if isinstance(environment, str):
            if limits is None or folder is None:
                settings = environment_settings(folder=folder)
                limits, folder = limits or limits_of(settings), settings.folder
            launch = launch_of(EnvironmentSpec.parse(environment), folder, python)
            self._pool = EnvironmentPool(launch, limits, size=processes)
            self.name, self.version, sizes = environment, self._pool.version, self._pool.sizes
            holds_out = self._pool.holds_out
        else:
            self._made = _made_of(environment)
            made = self._made()
            self.name, self.version = environment.__qualname__, _version(environment, made)
            with closing(InProcess(made)) as one:
                sizes, holds_out = one.sizes(), one.holds_out()
        self._sizes = sizes
        self.nothing_held_out = None if holds_out else nothing_held_out(self.name)
        """A sentence for readers of a score if held-out tasks start like those of training; else None."""
        world = environment if isinstance(environment, str) else attempt_label(environment)
        player = () if type(agent) is ChatAgent else (attempt_label(agent),)
        self.run_label = ":".join([world, str(seed), *player])

    def __call__(self, task: Task) -> float | None:
        """Play the task, and return its reward.

        Raises:
            LightningError: the task is of another environment or version, or the environment failed.
        """
        if (task.environment, task.version) != (self.name, self.version):
            raise LightningError(
                f"the task {task.id} is not of {self.name}@{self.version}: its attempts would not be comparable; make "
                "the tasks anew"
            )
        with self._playable() as environment:
            session = Session(environment, task, timeout_s=self._timeout_s)
            played = self._agent(session)
            if inspect.isawaitable(played):
                result_of(_in_time(played, session))
            if session.failure is not None:  # the agent continued despite the failure
                raise session.failure
            for name, reward in session.named_rewards.items():
                lt.reward(reward, name)
            return session.reward

    def tasks(self, split: str, count: int, *, first: int = 0) -> list[Task]:
        """Return tasks of a split by their seeds, from ``first`` on.

        Raises:
            LightningError: the environment has fewer.
        """
        size = None if self._sizes is None else self._sizes[split]
        if size == 0 and count:
            raise LightningError(f"{self.name} has no {split} tasks of its own; give it some, from a file with --tasks")
        if size is not None and count > size:
            raise LightningError(f"{self.name} has {size} {split} tasks, and {count} are asked for; ask for fewer")
        return [
            Task(self.name, self.version, split, seed if size is None else seed % size)
            for seed in range(first, first + count)
        ]

    def training_tasks(self, step: int, count: int, *, run: int = 1) -> Sequence[Task]:
        """Return the tasks of a step, counted from 1; if there are enough tasks, none repeats.

        Args:
            run: this run's number among the runs of one name (``StepRunner.run_number``); others get other tasks.
        """
        first = self._seed * _SEEDS_OF_A_RUN + (run - 1) * _SEEDS_OF_A_NUMBER
        return self.tasks(TRAIN, count, first=first + (step - 1) * count)

    def held_out_tasks(self, count: int) -> Sequence[Task]:
        """Return tasks that never occur in training, the same ones each time; but see ``nothing_held_out``."""
        return self.tasks(HELD_OUT, count)

    def named_task(self, name: str, fields: Mapping[str, Any]) -> Task:
        """Return a task from a file.

        Raises:
            ConfigError: the environment makes its tasks from seeds, so every line would be the same task.
        """
        if self._pool is not None:
            check_file_task(self.name, name)
        return Task(self.name, self.version, name=name, fields=fields)

    def close(self) -> None:
        """End the environment's processes."""
        if self._pool is not None:
            self._pool.close()

    @contextmanager
    def _playable(self) -> Iterator[Playable]:
        if self._pool is not None:
            with self._pool.lease(self.longest_s) as process:
                yield process
        else:
            assert self._made is not None
            with closing(InProcess(self._made())) as environment:
                yield environment


async def _in_time(played: Awaitable[None], session: Session) -> None:
    """Await the agent, and cancel it when its time is over: only where it awaits something and never within a step,
    since the environment goes to the next attempt."""
    try:
        async with asyncio.timeout(session.left_s):
            await played
    except TimeoutError:
        if session.left_s > 0:
            raise
        raise session.too_late from None


def _made_of(environment: Any) -> Callable[[], Environment]:
    if isinstance(environment, type):
        return environment
    if not inspect.isfunction(environment):
        raise ConfigError(
            "an environment is a name, a class that is created for each attempt, or a reward function, and "
            f"{environment!r} is none of them; pass its class, or a subclass that fixes its arguments"
        )
    try:
        RewardFunction(environment)
    except TypeError as error:
        raise ConfigError(str(error)) from None
    return partial(RewardFunction, environment)


def _version(environment: object, made: Environment) -> str:
    """Return an environment's version: its own, or the digest of its file."""
    version = getattr(made, "version", None)  # it may be a property, or set by the constructor
    if version is None:
        try:
            version = digest_of(Path(inspect.getfile(type(made))))
        except (OSError, TypeError):  # defined in an interactive interpreter
            version = "0"
    return str(version)
