"""Several policies that are trained on the same rollouts, asked as if they were one; and the groups that no step of
theirs will ever take, because someone dropped them or what was recorded of them is deleted.

The daemon takes the groups of a run whatever happened in them, so only what people take out can be missing (and groups
of clients that did not say whom they are made for, once they rest). The step would wait for them for ever; the run
begins another group for each.
"""

import logging
from collections.abc import Container, Sequence, Set
from typing import Any

from lightning_trainer.errors import LightningError, TrainingError
from lightning_trainer.rollouts.daemon_client import DaemonClient

_log = logging.getLogger(__name__)

_SHARED = ("group_size", "groups_per_step", "max_staleness")
_STEPS_NO_MORE = ("serving", "finished")


class TeamClient:
    """A client for a team of policies, whose step is done when each of them has done that step.

    A policy that is never trained (``train = false``), or has done its ``max_steps``, does not hold up the others.
    """

    def __init__(self, members: Sequence[DaemonClient]) -> None:
        self._members = members
        self._trained = members

    def wait_until_there(self) -> None:
        """Wait for a daemon that is starting; see ``DaemonClient``."""
        self._members[0].wait_until_there()

    def policy(self) -> dict[str, Any]:
        """Return the settings that the policies share, the fewest steps done, and the first policy's live version.

        Raises:
            LightningError: they do not take the same groups.
        """
        return self._merged([member.policy() for member in self._members])

    def groups(self, prefix: str, *, mode: str = "train", taken_until: int | None = None) -> dict[str, int]:
        """Return how many attempts of a mode have ended, by id of the groups with the prefix; see ``DaemonClient``.

        A group may have failed before some policy was called, so every policy is asked and the largest number counts;
        with ``taken_until``, the policy that has taken the fewest groups decides.
        """
        if taken_until is not None:
            asked = [member.groups(prefix, mode=mode, taken_until=taken_until) for member in self._trained]
            return min(asked, key=len)
        found: dict[str, int] = {}
        for member in self._members:
            for group, ended in member.groups(prefix, mode=mode).items():
                found[group] = max(ended, found.get(group, 0))
        return found

    def lost(self, prefix: str) -> set[str]:
        """Return the ids, with the prefix, of whole groups that no step of some policy will take."""
        return set[str]().union(*(member.lost(prefix) for member in self._trained))

    def used_up(self, prefix: str, *, taken_until: int) -> int:
        """Return how many groups with the prefix no later step takes, of the policy with the most: other runs may
        have brought the others some of theirs, and all of them need enough for the next step."""
        return max(member.used_up(prefix, taken_until=taken_until) for member in self._trained)

    def wait_for_step(self, steps_done: int, *, groups_wanted: int) -> dict[str, Any]:
        """Return the team's status once that many steps are done, or a policy's current step wants more groups; after
        some seconds in any case.

        Raises:
            TrainingError: training of a policy is paused, or none is left that is trained.
        """
        statuses = [member.policy() for member in self._members]
        over = [status["phase"] in _STEPS_NO_MORE for status in statuses]
        for member, ended in zip(self._members, over, strict=True):
            if not ended or all(over):
                status = member.wait_for_step(steps_done, groups_wanted=groups_wanted)
                if status["steps_done"] < steps_done:
                    break
        return self.policy()

    def _merged(self, statuses: Sequence[dict[str, Any]]) -> dict[str, Any]:
        over = [status["phase"] in _STEPS_NO_MORE for status in statuses]
        trained = [status for status, ended in zip(statuses, over, strict=True) if not ended] or list(statuses)
        self._trained = [member for member, ended in zip(self._members, over, strict=True) if not ended or all(over)]
        for name in _SHARED:
            values = [status[name] for status in trained]
            if any(value != values[0] for value in values):
                raise LightningError(
                    f"policies that are trained on the same rollouts have {name} = {', '.join(map(str, values))}; "
                    "make them equal"
                )
        if any(status["dynamic_sampling"] for status in trained):
            raise LightningError(
                "policies that are trained on the same rollouts take the same groups, and dynamic_sampling takes "
                "further ones for one of them; set algorithm.dynamic_sampling = false (in every stage)"
            )
        return {
            **trained[0],
            "steps_done": min(status["steps_done"] for status in trained),
            "groups_wanted": max(status["groups_wanted"] for status in trained),
            "needs_baseline": any(status["needs_baseline"] for status in trained),
        }


_MOST_STEPS = 10
"""As many steps' groups may be lost while one step is waited for: as ``max_sampling_rounds`` of dynamic sampling."""
_NAMED = 3


class LostGroups:
    """What is known of one run; what a step took is not lost, whatever became of it later."""

    def __init__(self, daemon: DaemonClient | TeamClient, run: str, *, groups_per_step: int) -> None:
        self._daemon = daemon
        self._run = run
        self._most = _MOST_STEPS * groups_per_step
        self._found = set(daemon.lost(f"{run}/step-"))
        self._said: set[str] = set()
        self._step = 0
        self._of_step = 0
        """How many were found since that step is waited for, except at the first look."""

    def look(self, in_flight: Set[str], taken: Container[str], step: int) -> Set[str]:
        """Return all that are known by now; new ones are said in a sentence.

        Args:
            in_flight: ids of the groups that were begun and were neither taken nor lost before.
            taken: ids of the groups that steps have taken.
            step: the one that is waited for.

        Raises:
            TrainingError: so many were lost since that step is waited for that it will hardly come.
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
