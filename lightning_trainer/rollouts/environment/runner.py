"""A runner whose attempts are played in an environment, by our own agent or the user's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Self

from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.routing.selection import fits

from lightning_trainer.environments.agent import Agent, ChatAgent
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.protocol import Environment, Task
from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import AttemptEnded, Event
from lightning_trainer.rollouts.curriculum import Curriculum
from lightning_trainer.rollouts.daemon_client import daemon_of_client, policy_of
from lightning_trainer.rollouts.environment.attempt import EnvironmentAttempt
from lightning_trainer.rollouts.evaluation_journal import Versions
from lightning_trainer.rollouts.step_runner import StepRunner
from lightning_trainer.rollouts.task_file import RowTask, task_of

_log = logging.getLogger(__name__)

_ACCESS = ("base_url", "api_key", "tls")
"""Settings of our agent that do not change how it plays; one of them is a secret."""


class EnvironmentRunner(StepRunner[Any]):
    """The runner of ``Runner.from_environment``: training tasks and held-out tasks come from the environment, or are
    dicts that the environment reads like tasks from a file.

    Args:
        environment: a name, or a class or a reward function in this process.
        policy: the name of the policy that is trained; or ``POLICY@vN``, a version of it for our own agent to evaluate.
        agent: acts in the session that it gets; by default a ``ChatAgent`` with the policy's model, which gets
            ``agent_options``.
        processes: how many processes of a named environment, and so how many attempts, may run at once; by default
            ``concurrency``.
        seed: seed of the training tasks.
        limits, folder, python: settings of a named environment's processes; ``limits`` and ``folder`` are by default
            those of ``[environments]`` in the ``lightning.toml`` of this folder, as for the command line.
        label: text that distinguishes this run from others of the policy, unless ``run`` names it.
        curriculum: for tasks that ``train`` is given; the environment's own tasks have no kind.
        run, concurrency, retries, on_event: as for any runner.
    """

    def __init__(
        self,
        environment: str | type[Environment] | Callable[..., Any],
        *,
        policy: str,
        agent: Agent | None = None,
        agent_options: dict[str, Any] | None = None,
        endpoint: str | None = None,
        concurrency: int = 64,
        processes: int | None = None,
        timeout_s: float = 120.0,
        seed: int = 0,
        limits: Limits | None = None,
        folder: Path | None = None,
        python: str | None = None,
        run: str | None = None,
        label: str | None = None,
        retries: int = 0,
        on_event: Callable[[Event], None] = lambda event: None,
        curriculum: Curriculum[Task] | None = None,
    ) -> None:
        self._model, policy = policy, policy_of(policy)
        self._played_by: dict[str, Any] = {}
        """Settings of our own agent."""
        if agent is not None and policy != self._model:
            raise LightningError(
                f"an agent of your own chooses its model: have the agent ask for the model {self._model!r}, and name "
                f"the policy, {policy!r}"
            )
        if agent is None:
            options = dict(agent_options or {})
            options["name"] = options.get("name") or policy
            if "base_url" not in options:  # another endpoint gets neither the daemon's token nor its certificates
                reached = daemon_of_client(endpoint)
                access = Access(reached.endpoint, reached.token, ca_file=reached.ca_file)
                options = {"base_url": f"{reached.endpoint}/v1", "api_key": reached.token, "tls": access.tls, **options}
            agent = ChatAgent(self._model, **options)
            self._played_by = {key: value for key, value in options.items() if key not in _ACCESS}
        self._agent_name = agent.name if isinstance(agent, ChatAgent) else None
        self.environment = EnvironmentAttempt(
            environment,
            agent,
            limits=limits,
            folder=folder,
            python=python,
            processes=processes or concurrency,
            timeout_s=timeout_s,
            seed=seed,
        )
        if label is not None:
            self.environment.run_label = label
        if isinstance(environment, str) and processes is not None:
            # An attempt that waited for a process would use up its time.
            concurrency = min(concurrency, processes)
        super().__init__(
            policy,
            self.environment,
            # Our own agent plays at temperature 0 in a baseline; whether another agent does is not known.
            baseline=None if self._agent_name is None else self.environment,
            run=run,
            endpoint=endpoint,
            concurrency=concurrency,
            timeout_s=self.environment.longest_s,
            retries=retries,
            on_event=on_event,
            tasks=lambda step, count: self.environment.training_tasks(step, count, run=self.run_number),
            curriculum=curriculum,
        )

    def evaluate_held_out(
        self, count: int, *, stage: str = "held-out", journal: str | PathLike[str] | None = None
    ) -> list[AttemptEnded]:
        """Play ``count`` tasks that never occur in training, once each; the attempts are recorded and never trained.
        With a ``journal``, an interrupted evaluation continues as in ``evaluate``.

        If the environment has too few different openings to hold any out, a warning says so.
        """
        if self.environment.nothing_held_out is not None:
            _log.warning("%s", self.environment.nothing_held_out)
        return self.evaluate(self.environment.held_out_tasks(count), stage=stage, journal=journal)

    def _live_versions(self) -> Versions:
        policy, _, number = self._model.rpartition("@v")
        return {policy: int(number)} if policy_of(self._model) != self._model else super()._live_versions()

    def _settings(self) -> dict[str, Any]:
        return {"agent": self._played_by}

    def _as_task(self, given: Any) -> Task:
        if not isinstance(given, Mapping):
            return task_of(given)
        row = RowTask(given)
        return self.environment.named_task(row.id, dict(row))

    def _check(self, status: dict) -> None:
        if (policy := policy_of(self._model)) != self._model:
            raise LightningError(
                f"{self._model!r} is a version of a policy, which is evaluated and never trained; name the policy, "
                f"{policy!r}"
            )
        name = self._agent_name
        if status["needs_baseline"] and name is None:
            raise LightningError(
                "the policy's advantage estimator compares attempts with a greedy one at the same task, and only our "
                "own agent is known to play one; leave out `agent` (or the program), or choose another "
                "algorithm.advantage"
            )
        super()._check(status)
        if name is not None and not fits(name, status["agents"]):
            raise LightningError(
                f"the agent that plays is called {name!r}, and the policy claims the agents "
                f"{', '.join(status['agents'])}: none of its calls would be trained; add its name to the policy's "
                '`agents`, or name the agent with --agent or agent_options={"name": ...}'
            )

    def close(self) -> None:
        """End the environment's processes; they also end with this process, however it ends."""
        self.environment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
