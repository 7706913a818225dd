"""The runner for agents that are Python functions, with a constructor for agents that play in an environment."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lightning_trainer.errors import MissingExtraError
from lightning_trainer.rollouts.attempt import TaskT
from lightning_trainer.rollouts.step_runner import StepRunner

if TYPE_CHECKING:
    from lightning_trainer.environments.agent import Agent
    from lightning_trainer.environments.protocol import Environment
    from lightning_trainer.rollouts.environment.runner import EnvironmentRunner


class Runner(StepRunner[TaskT]):
    """Runs ``attempt(task) -> reward`` for many tasks at once: anything with an id, or dicts such as rows of a dataset.

    ``policy`` names the policy that is trained on the attempts, or several whose agents all act in every attempt; with
    no policy, ``()``, evaluations are recorded and nothing can be trained.

    ``attempt`` returns the reward of the attempt (None: nothing scored it); an awaitable is awaited, on one event loop
    for all. If it raises, the attempt has failed and the run continues. ``timeout_s`` is the limit of one attempt,
    ``retries`` how often a failed one is made again: the failed ones are recorded and never trained, and the last one
    counts, whatever its outcome. ``baseline`` is the same at temperature 0; it runs once per group if the policy's
    estimator subtracts its reward (``remax``).

    ``run`` names the run; by default the name follows from the policies and from ``attempt``, with a number if another
    process is running the same (``run_name.py``). ``tasks`` returns a given number of tasks for a step; ``train`` uses
    it if it gets no tasks. With a ``curriculum``, ``train`` takes more tasks for a step than it needs, and the
    curriculum chooses among them.
    """

    @classmethod
    def from_environment(
        cls,
        environment: "str | type[Environment] | Callable[..., Any]",
        *,
        policy: str,
        agent: "Agent | None" = None,
        **options: Any,
    ) -> "EnvironmentRunner":
        """Return a runner whose attempts are played in an environment: ``runner.train(steps=20)``.

        Args:
            environment: a name such as ``frozenlake:4x4``, ``path/to/file.py:Class`` or ``package.module:Class``, or
                a class; or, in place of the class, a function that scores an answer, for tasks that ``train`` is given.
            agent: acts in the session that it gets; by default our own, with the policy's model.
            options: for ``EnvironmentRunner``.

        Raises:
            LightningError: there is no such environment, or it does not start.
        """
        try:
            from lightning_trainer.rollouts.environment.runner import EnvironmentRunner
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                f"environments need {error.name}, which is not installed; run: "
                'pip install "lightning-trainer[environments]"'
            ) from error

        return EnvironmentRunner(environment, policy=policy, agent=agent, **options)
