"""What a run is told of its steps: what the daemon found wrong in them, and when none of its attempts works."""

import logging
from typing import Any

from lightning_trainer.errors import TrainingError
from lightning_trainer.rollouts.attempt import AttemptEnded

_log = logging.getLogger(__name__)


class StepWatch:
    """Follows the attempts and steps of one run.

    Args:
        status: the policy's as the run begins: what the daemon has said by then is of other runs.
    """

    def __init__(self, status: dict[str, Any]) -> None:
        self._whole = status["group_size"] * status["groups_per_step"]
        self._said = set(status["problems"])
        self._failed: dict[int, list[str]] = {}
        """Errors by the run's own step, since a step was trained."""

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """Take note of how it ended."""
        if attempt.stage == "train" and attempt.step is not None and attempt.error is not None:
            self._failed.setdefault(attempt.step, []).append(attempt.error)

    def step_ended(self, step: int, status: dict[str, Any]) -> None:
        """Log each sentence that the daemon had not said before.

        Raises:
            TrainingError: nothing of the step was trained, and all attempts of a whole step have failed: the next ones
                would use up the policy's steps in the same way.
        """
        new = [problem for problem in status["problems"] if problem not in self._said]
        self._said.update(new)
        for problem in new:
            _log.warning("%s", problem)
        # Failed attempts that were scored may have been trained.
        if not any(done["step"] == step and done["state"] == "skipped" for done in status["steps"]):
            self._failed.clear()
        for number, errors in [*self._failed.items()]:
            if len(errors) >= self._whole:
                raise TrainingError(
                    f"all {len(errors)} attempts of step {number} failed and nothing was trained, the first with: "
                    f"{errors[0]}; mend that and start the run again"
                )
