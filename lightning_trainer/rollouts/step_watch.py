"""What a run is told of its steps: what the daemon found wrong in them, and if no attempt works or none arrives."""

import logging
from typing import Any

import lightning_instrumentation as lt
from lightning_instrumentation.runtime import runtime

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.rollouts.attempt import AttemptEnded
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.team import TeamClient

_log = logging.getLogger(__name__)


def check_recording() -> None:
    """Check that this program records.

    Raises:
        LightningError: it does not: a step would wait for its attempts for ever.
    """
    if runtime() is None:
        raise LightningError(
            "OTEL_SDK_DISABLED is set, so this program records nothing and no attempt would ever reach the daemon; "
            "unset it"
        )


class StepWatch:
    """Follows the attempts and steps of one run.

    Args:
        status: the policy's as the run begins: what the daemon has said by then is of other runs.
        endpoint: where the daemon is.
    """

    def __init__(self, status: dict[str, Any], daemon: DaemonClient | TeamClient, run: str, *, endpoint: str) -> None:
        self._daemon = daemon
        self._prefix = f"{run}/step-"
        self._endpoint = endpoint
        self._there_before = self._there()
        self._ended = 0
        self._arrive = False
        self._whole = status["group_size"] * status["groups_per_step"]
        self._said = set(status["problems"])
        self._failed: dict[int, list[str]] = {}
        """Errors by the run's own step, since a step was trained."""

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """Take note of how it ended."""
        self._ended += attempt.stage == "train"
        if attempt.stage == "train" and attempt.step is not None and attempt.error is not None:
            self._failed.setdefault(attempt.step, []).append(attempt.error)

    def check_arrival(self) -> None:
        """Check, until one has, that attempts which have ended arrive at the daemon.

        Raises:
            LightningError: none has, though none waits here: it answers only after it has stored what it was sent.
        """
        ended = self._ended
        if self._arrive or not ended or not lt.flush(0.0):  # what waits may still arrive; the client says why it waits
            return
        self._arrive = self._there() > self._there_before
        if not self._arrive:
            raise LightningError(
                f"the daemon at {self._endpoint} has received none of the {ended} attempts that have ended, and no "
                f"step would come: {_where_they_went(self._endpoint)}"
            )

    def _there(self) -> int:
        return sum(self._daemon.groups(self._prefix).values())

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


def _where_they_went(endpoint: str) -> str:
    client = runtime()
    if client is not None and client.settings.endpoint != endpoint:
        return (
            f"this program records for {client.settings.endpoint}; give the Runner and lt.init(...) the same endpoint, "
            "or set LIGHTNING_ENDPOINT for both"
        )
    return (
        "this program's spans were lost or refused, or it called lt.shutdown() in an attempt; what the client logged "
        "says more"
    )
