"""Several policies that are trained on the same rollouts, asked as if they were one.

A policy that was trained before the others has done more steps than they have. The team's steps are counted like those
of the policy that has done the fewest, and each other policy is asked about its own, higher number of the same step.
"""

import math
from collections.abc import Mapping, Sequence
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
        self._ahead: Mapping[DaemonClient, int] = {}
        """How many steps a policy had done before it was trained with the others; 0 for a policy that is missing."""

    def wait_until_there(self) -> None:
        """Wait for a daemon that is starting; see ``DaemonClient``."""
        for member in self._members:
            member.wait_until_there()

    def policy(self) -> dict[str, Any]:
        """Return the settings that the policies share, the fewest steps done, and the first policy's live version.

        Raises:
            LightningError: the policies do not take the same groups.
        """
        statuses = [member.policy() for member in self._members]
        self._ahead = self._steps_ahead(statuses)
        return self._merged(statuses)

    def live_versions(self) -> dict[str, int | None]:
        """Return the live version of each policy."""
        return {name: version for member in self._members for name, version in member.live_versions().items()}

    def groups(self, prefix: str, *, mode: str = "train", taken_until: int | None = None) -> dict[str, int]:
        """Return how many attempts of a mode have ended, by id of the groups with the prefix; see ``DaemonClient``.

        A group may have failed before some policy was called, so every policy is asked and the largest number counts;
        with ``taken_until``, the policy that has taken the fewest groups decides.
        """
        if taken_until is not None:
            asked = [
                member.groups(prefix, mode=mode, taken_until=taken_until + self._ahead.get(member, 0))
                for member in self._trained
            ]
            return min(asked, key=len)
        found: dict[str, int] = {}
        for member in self._members:
            for group, ended in member.groups(prefix, mode=mode).items():
                found[group] = max(ended, found.get(group, 0))
        return found

    def recorded(self, prefix: str) -> dict[str, int]:
        """Return how many attempts, which are of no policy, were made for a dataset, by id of the prefix's groups."""
        return self._members[0].recorded(prefix)

    def lost(self, prefix: str) -> set[str]:
        """Return the ids with the prefix of whole groups that no step of some policy will take."""
        return set[str]().union(*(member.lost(prefix) for member in self._trained))

    def used_up(self, prefix: str, *, taken_until: int) -> int:
        """Return how many groups with the prefix no later step takes, for the policy with the most: other runs may have
        brought groups to the other policies, and every policy needs enough for the next step."""
        return max(
            member.used_up(prefix, taken_until=taken_until + self._ahead.get(member, 0)) for member in self._trained
        )

    def wait_for_step(self, steps_done: int, *, groups_wanted: int) -> dict[str, Any]:
        """Return the team's status once that many steps are done, once a policy's current step wants more groups, or
        after some seconds in any case.

        Raises:
            TrainingError: training of a policy is paused, or no policy is left to train.
        """
        trained = _trained(self._members, [member.policy() for member in self._members])
        for member in trained:
            own = steps_done + self._ahead.get(member, 0)
            if member.wait_for_step(own, groups_wanted=groups_wanted)["steps_done"] < own:
                break
        return self._merged([member.policy() for member in self._members])

    def _steps_ahead(self, statuses: Sequence[dict[str, Any]]) -> Mapping[DaemonClient, int]:
        """Return how many steps each policy had done before it was trained with the others.

        This is not the number of steps that it is ahead now: if a run was interrupted, one policy may have done a step
        whose groups another has yet to take.
        """
        trained = _trained(self._members, statuses)
        fewest = min(trained, key=lambda member: trained[member]["steps_done"])
        ahead = dict.fromkeys(trained, 0)
        for member, status in trained.items():
            if (more := status["steps_done"] - trained[fewest]["steps_done"]) > 0:
                ahead[member] = max(0, more - _begun(trained, member, fewest)) + _begun(trained, fewest, member)
        return ahead

    def _merged(self, statuses: Sequence[dict[str, Any]]) -> dict[str, Any]:
        counted = _trained(self._members, statuses)
        trained = [_counted_by_team(status, self._ahead.get(member, 0)) for member, status in counted.items()]
        self._trained = [*counted]
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


def _trained(members: Sequence[DaemonClient], statuses: Sequence[dict[str, Any]]) -> dict[DaemonClient, dict[str, Any]]:
    """Return the policies that are still trained, with their status; all policies if none is."""
    of_all = dict(zip(members, statuses, strict=True))
    return {member: one for member, one in of_all.items() if one["phase"] not in _STEPS_NO_MORE} or of_all


def _begun(trained: Mapping[DaemonClient, dict[str, Any]], one: DaemonClient, other: DaemonClient) -> int:
    """Return how many steps one policy has done whose groups the other has yet to take."""
    taken, others = (member.groups("", taken_until=trained[member]["steps_done"]).keys() for member in (one, other))
    waiting = other.groups("").keys() - others - other.lost("")
    return math.ceil(len(taken & waiting) / trained[one]["groups_per_step"])


def _counted_by_team(status: dict[str, Any], ahead: int) -> dict[str, Any]:
    """Return the status with its steps numbered as the team counts them."""
    return {
        **status,
        "steps_done": status["steps_done"] - ahead,
        "steps": [{**step, "step": step["step"] - ahead} for step in status["steps"]],
        "shown_steps": [
            (first - ahead, None if last is None else last - ahead) for first, last in status["shown_steps"]
        ],
    }
