"""The groups of a run that no step will ever take: someone dropped them, or what was recorded of them was deleted.

The daemon takes the groups of a run whatever happened in them, so only groups that people take out can be missing (and
groups of clients that did not say for which policies they are made, once these groups rest). A step would wait for them
forever, so the run begins another group for each.
"""

import logging
from collections.abc import Container, Set

from lightning_trainer.errors import TrainingError
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.team import TeamClient

_log = logging.getLogger(__name__)
_MOST_STEPS = 10
"""As many steps' groups may be lost during the wait for one step: like ``max_sampling_rounds`` of dynamic sampling."""
_NAMED = 3


class LostGroups:
    """The lost groups of one run. A group that a step took is not lost, whatever became of it later."""

    def __init__(self, daemon: DaemonClient | TeamClient, run: str, *, groups_per_step: int) -> None:
        self._daemon = daemon
        self._run = run
        self._most = _MOST_STEPS * groups_per_step
        self._found = set(daemon.lost(f"{run}/step-"))
        self._said: set[str] = set()
        self._step = 0
        self._of_step = 0
        """How many lost groups were found while waiting for ``_step``, without those that were known at the start."""

    def look(self, in_flight: Set[str], taken: Container[str], step: int) -> Set[str]:
        """Return all lost groups that are known by now, and log the new ones in a sentence.

        Args:
            in_flight: ids of the groups that were begun and were neither taken nor lost before.
            taken: ids of the groups that steps have taken.
            step: the step that the run waits for.

        Raises:
            TrainingError: so many groups were lost while waiting for that step that it will hardly come.
        """
        if step != self._step:
            self._step, self._of_step = step, 0
        asked = {group.removeprefix(f"{self._run}/step-").partition("/")[0] for group in in_flight}
        lost = {group for number in asked for group in self._daemon.lost(f"{self._run}/step-{number}/")}
        new = lost & in_flight
        self._of_step += len(new)
        self._found |= new
        self._say(sorted(group for group in self._found - self._said if group not in taken))
        if self._of_step > self._most:
            raise TrainingError(
                f"step {step} will not come: {self._of_step} groups of the run were dropped or deleted while it was "
                f"waited for, such as {min(new)}; start the run again to go on with other tasks"
            )
        return self._found

    def _say(self, groups: list[str]) -> None:
        self._said |= self._found
        if groups:
            more = f" and {len(groups) - _NAMED} more" if len(groups) > _NAMED else ""
            _log.warning(
                "no step will take %s%s (dropped, deleted, or without a call of the policy's): "
                "another task is tried for each",
                ", ".join(groups[:_NAMED]),
                more,
            )
