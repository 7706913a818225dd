"""Which steps made a version's weights, given the rollbacks, and which versions were trained with given data: those of
the steps that took the data, and all their descendants.

A step continues from the head: the version before it, or the target of a rollback since then. Numbers are never reused,
so the steps that a rollback left behind remain valid targets.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import Rollback, StepState
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import versions as version_table
from lightning_trainer.store.worklist.forgetting import TrainedStep
from lightning_trainer.types import VersionState


class Lineage:
    """The parent of each version; version 0 is the initial model."""

    def __init__(self, trained_steps: Iterable[int], rollbacks: Sequence[Rollback] = ()) -> None:
        """Compute the parents.

        Args:
            trained_steps: the steps that changed the weights, or will when they are repeated; ascending.
            rollbacks: in chronological order.
        """
        self._parents: dict[int, int] = {}
        self.head = 0
        """The version that the next step continues from."""
        waiting = list(rollbacks)
        for step in trained_steps:
            while waiting and waiting[0].after_step < step:
                self.head = waiting.pop(0).version
            self._parents[step] = self.head
            self.head = step
        self.gone_back = bool(waiting)
        """Whether the head is the target of a rollback, and no step has been trained since."""
        for rollback in waiting:
            self.head = rollback.version

    def __contains__(self, version: int) -> bool:
        return version == 0 or version in self._parents

    def parent(self, version: int) -> int | None:
        """Return the version that this one was trained from; None for version 0 and for unknown versions."""
        return self._parents.get(version)

    def path(self, version: int | None = None) -> tuple[int, ...]:
        """Return the versions from 0 to ``version`` (by default the head): repeating these steps gives its weights."""
        path = [self.head if version is None else version]
        while path[-1] != 0:
            path.append(self._parents[path[-1]])
        return tuple(reversed(path))


@dataclass(frozen=True, slots=True)
class MadeWith:
    """One policy's steps and versions that the data is part of."""

    policy: str
    steps: tuple[int, ...]
    """Steps that took the data."""
    not_trained: tuple[int, ...]
    """The ones of these that are recorded but not trained yet."""
    versions: tuple[int, ...]
    """Ascending."""
    before: int
    """The newest version before the first of the steps, on its lineage, that was served; rollback refuses others."""

    @property
    def sentence(self) -> str:
        """Return this as a sentence that also says what to do."""
        which = f"step{'s' * (len(self.steps) != 1)} {_listed(self.steps)} of policy {self.policy}"
        said = f"{which} took it"
        if self.versions:
            said += (
                f", so version{'s' * (len(self.versions) != 1)} {_listed(self.versions)} "
                f"{'were' if len(self.versions) != 1 else 'was'} trained with it: `lightning-trainer rollback "
                f"{self.policy}@v{self.before}` goes back to before"
            )
        if self.not_trained:
            steps = ", ".join(f"`lightning-trainer drop {self.policy}@{step}`" for step in self.not_trained)
            said += f"; step {_listed(self.not_trained)} is not trained yet: {steps} takes it out"
        return said


def made_with(connection: Connection, steps: Collection[TrainedStep]) -> list[MadeWith]:
    """Return, for each policy, its steps and the versions that they led to."""
    found = []
    for policy in sorted({one.policy for one in steps}):
        taken = sorted(one.step for one in steps if one.policy == policy)
        waiting = tuple(one.step for one in steps if one.policy == policy and one.state == StepState.ASSIGNED)
        states = step_table.select_states(connection, policy)
        changed = [step for step, state in sorted(states.items()) if state is not StepState.SKIPPED]
        lineage = Lineage(changed, version_table.select_rollbacks(connection, policy))
        trained = [step for step in changed if states[step] is StepState.TRAINED]
        versions = tuple(one for one in trained if set(lineage.path(one)) & set(taken))
        earlier = lineage.path(lineage.parent(taken[0]) or 0)
        before = next((one for one in reversed(earlier) if _was_served(connection, policy, one)), 0)
        found.append(MadeWith(policy, tuple(taken), waiting, versions, before))
    return found


def _was_served(connection: Connection, policy: str, version: int) -> bool:
    known = version_table.select_one(connection, policy, version)
    return known is not None and known.state in (VersionState.LIVE, VersionState.RETIRED)


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A step that the weights no longer contain, because training went back to a version before it."""

    step: int
    gone_back_to: int
    versions: tuple[int, ...]
    """The versions that were trained with it, ascending; none if it was not trained before."""

    @property
    def sentence(self) -> str:
        """Return this as a sentence."""
        untrained = "" if self.versions else ", before it was trained"
        said = f"step {self.step} was left behind when training went back to version {self.gone_back_to}{untrained}"
        if not self.versions:
            return said
        which = f"version{'s' * (len(self.versions) != 1)} {_listed(self.versions)}"
        return f"{said}; it is in {which}, and not in what training goes on from"


def left_behind(connection: Connection, policy: str, step: int) -> LeftBehind | None:
    """Return what became of a step that changed the weights; None if training did not go back to before it."""
    rollbacks = version_table.select_rollbacks(connection, policy)
    if not any(step <= rollback.after_step for rollback in rollbacks):
        return None
    states = step_table.select_states(connection, policy)
    lineage = Lineage((one for one, state in states.items() if state is not StepState.SKIPPED), rollbacks)
    if step not in lineage or step in lineage.path():
        return None
    having = {step}
    for one in states:
        if lineage.parent(one) in having:
            having.add(one)
    # Training may have returned to the step and left it behind again: only the rollbacks since then count.
    *_, leaving = takewhile(lambda one: step <= one.after_step and one.version not in having, reversed(rollbacks))
    trained = (one for one in sorted(having) if states[one] is StepState.TRAINED)
    return LeftBehind(step, leaving.version, tuple(trained))


def _listed(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 3, 5 to 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
