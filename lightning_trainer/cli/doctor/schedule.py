"""Whether a policy's loss and clip range can do what they are for, under the updates that a step has."""

from lightning_trainer.cli.doctor.check import Check, warning
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.training.settings import schedule_notes


def check_schedule(config: Config, policy: PolicyConfig) -> list[Check]:
    """Return a warning for every setting without its effect; nothing where there is none."""
    found = []
    for note in schedule_notes(config, policy):
        what, _, mend = note.rpartition("; ")
        found.append(warning(f"updates of {policy.name}", what, mend))
    return found
