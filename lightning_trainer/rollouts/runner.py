"""The runner of an agent that is a Python function, and the way from it to one that plays in an environment."""

from typing import TYPE_CHECKING, Any

from lightning_trainer.errors import MissingExtraError
from lightning_trainer.rollouts.attempt import TaskT
from lightning_trainer.rollouts.step_runner import StepRunner

if TYPE_CHECKING:
    from lightning_trainer.environments.agent import Agent
    from lightning_trainer.environments.protocol import Environment
    from lightning_trainer.rollouts.environment.runner import EnvironmentRunner


class Runner(StepRunner[TaskT]):
    """Runs ``attempt(task) -> reward`` for many tasks at once.

    ``policy`` names the policy that is trained on them, or all of those whose agents take part in every attempt.
    ``attempt`` returns the reward of the attempt (None: nothing scored it); what is to be awaited is awaited, all of it
    on one event loop. It may raise; the attempt has failed then and the run goes on. ``timeout_s`` is the limit of one
    attempt, ``retries`` how often one that has failed is made again: what failed is recorded and never trained, the
    last one counts whatever became of it. ``baseline`` is the same at temperature 0; it runs once a group where the
    policy's estimator takes its reward off (``remax``). ``run`` names the run; unless given, the name follows from the
    policies and from ``attempt``, with a number where another process is running the same (``run_name.py``). ``tasks``
    returns so many tasks of a step, for ``train`` without any. With a ``curriculum``, ``train`` takes more tasks of a
    step than it needs, and the curriculum chooses among them.
    """

    @classmethod
    def from_environment(
        cls, environment: "str | type[Environment]", *, policy: str, agent: "Agent | None" = None, **options: Any
    ) -> "EnvironmentRunner":
        """Return a runner whose attempts are played in an environment: ``runner.train(steps=20)``.

        Args:
            environment: a name such as ``frozenlake:4x4`` or ``path/to/file.py:Class``, or a class.
            agent: acts in the session that it is handed; one of ours with the policy's model when absent.
            options: of ``EnvironmentRunner``.

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
