"""A step took the attempt, but training has since gone back to before that step."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding


def diagnose(case: Case) -> Finding | None:
    """Say which versions still contain the step, if the weights that training continues from do not."""
    left = case.judged.left_behind
    return None if left is None else Finding("rolled back", left.sentence, blocks=not left.versions)
