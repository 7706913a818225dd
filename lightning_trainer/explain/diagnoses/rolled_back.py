"""A step took the attempt, and training has gone back to before it since."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding


def diagnose(case: Case) -> Finding | None:
    """Say which versions still have the step, if the weights that training goes on from do not."""
    left = case.judged.left_behind
    return None if left is None else Finding("rolled back", left.sentence, blocks=not left.versions)
