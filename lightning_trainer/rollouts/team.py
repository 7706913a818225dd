"""Several policies that are trained on the same rollouts, asked as if they were one."""

from collections.abc import Sequence
from typing import Any

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.daemon_client import DaemonClient

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
        for member in self._members:
            member.wait_until_there()

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
            "problems": [problem for status in trained for problem in status["problems"]],
        }
