"""Warnings and errors about a run's steps: the daemon's problems with them, attempts that all fail or never arrive."""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import lightning_instrumentation as lt
from lightning_instrumentation.runtime import runtime

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.rollouts.attempt import AttemptEnded

_log = logging.getLogger(__name__)


def check_recording() -> None:
    """Check that this program records.

    Raises:
        LightningError: it does not: a step would wait for its attempts forever.
    """
    if runtime() is None:
        raise LightningError(
            "OTEL_SDK_DISABLED is set, so this program records nothing and no attempt would ever reach the daemon; "
            "unset it"
        )


class Arrivals:
    """Whether attempts of one run arrive at the daemon; once one has, the others will.

    Args:
        there: asks the daemon how many of the attempts it has, by group.
        endpoint: the daemon's URL.
    """

    def __init__(self, there: Callable[[], Mapping[str, int]], endpoint: str) -> None:
        self._there = there
        self._endpoint = endpoint
        self._before = self._count()
        self._seen = False

    def check(self, ended: int, *, wait_s: float = 0.0) -> None:
        """Check that at least one of the attempts that have ended by now has arrived.

        Args:
            wait_s: how long to wait for spans that are on their way. If some still are after that, nothing is checked:
                they may yet arrive, and the client has logged what they wait for.

        Raises:
            LightningError: none has arrived, though no span is waiting: the daemon answers only when it has stored what
                it was sent.
        """
        if self._seen or not ended or not lt.flush(wait_s):
            return
        self._seen = self._count() > self._before
        if not self._seen:
            raise LightningError(
                f"the daemon at {self._endpoint} has received none of the {ended} attempts that have ended: "
                f"{_where_they_went(self._endpoint)}"
            )

    def _count(self) -> int:
        return sum(self._there().values())


class StepWatch:
    """Follows the attempts and steps of one run.

    Args:
        status: the policy's status when the run begins; the problems in it are those of other runs.
        arrivals: arrivals of the attempts to train on.
    """

    def __init__(self, status: dict[str, Any], arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._ended = 0
        self._whole = status["group_size"] * status["groups_per_step"]
        self._said = set(status["problems"])
        self._failed: dict[int, list[str]] = {}
        """Errors by the run's own step, since a step last trained on something."""

    def attempt_ended(self, attempt: AttemptEnded) -> None:
        """Take note of how an attempt ended."""
        self._ended += attempt.stage == "train"
        if attempt.stage == "train" and attempt.step is not None and attempt.error is not None:
            self._failed.setdefault(attempt.step, []).append(attempt.error)

    def check_arrival(self) -> None:
        """Check that attempts which have ended arrive at the daemon; see ``Arrivals``."""
        self._arrivals.check(self._ended)

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


def reward_mean(status: dict, step: int) -> float | None:
    """Return the mean reward of what a step trained on; attempts that ended meanwhile may belong to later steps."""
    return next((done["metrics"].get("reward/mean") for done in status["steps"] if done["step"] == step), None)
