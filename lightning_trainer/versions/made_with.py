"""Which versions were trained with given data: those of the steps that took it, and all that descend from them."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepState
from lightning_trainer.store.tables import steps as step_table
from lightning_trainer.store.tables import versions as version_table
from lightning_trainer.store.worklist.forgetting import TrainedStep
from lightning_trainer.versions.lineage import Lineage


@dataclass(frozen=True, slots=True)
class MadeWith:
    """One policy's steps and versions that the data is part of."""

    policy: str
    steps: tuple[int, ...]
    """Steps that took it."""
    not_trained: tuple[int, ...]
    """Of these, the ones that are recorded but not trained yet."""
    versions: tuple[int, ...]
    """Ascending."""
    before: int
    """The parent of the first of the steps: the newest version without it."""

    @property
    def sentence(self) -> str:
        """Return this as a sentence, with what to do."""
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
    """Return by policy what the steps produced."""
    found = []
    for policy in sorted({one.policy for one in steps}):
        taken = sorted(one.step for one in steps if one.policy == policy)
        waiting = tuple(one.step for one in steps if one.policy == policy and one.state == StepState.ASSIGNED)
        states = step_table.select_states(connection, policy)
        changed = [step for step, state in sorted(states.items()) if state is not StepState.SKIPPED]
        lineage = Lineage(changed, version_table.select_rollbacks(connection, policy))
        trained = [step for step in changed if states[step] is StepState.TRAINED]
        versions = tuple(one for one in trained if set(lineage.path(one)) & set(taken))
        found.append(MadeWith(policy, tuple(taken), waiting, versions, lineage.parent(taken[0]) or 0))
    return found


def _listed(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: 3, 5 to 9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
