"""Nothing is wrong: evaluations, baselines, attempts for a dataset, retried and dropped ones are never trained."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding
from lightning_trainer.types import RolloutMode


def diagnose(case: Case) -> Finding | None:
    """Explain every mode other than training, each in its own words."""
    if case.attempt is None or case.attempt.mode is RolloutMode.TRAIN:
        return None
    if case.attempt.mode is RolloutMode.BASELINE:
        return Finding(
            "baseline",
            f'attempt {case.attempt_id} was made with mode "baseline": its reward is what the others of group '
            f"{case.attempt.group_id} are compared with",
        )
    if case.attempt.mode is RolloutMode.RECORD:
        return Finding(
            "recorded",
            f'attempt {case.attempt_id} was made with mode "record": datasets are made from it (`lightning-trainer '
            "build`), and no step takes it",
        )
    if case.attempt.mode is RolloutMode.RETRIED:
        return Finding(
            "retried",
            f"attempt {case.attempt_id} failed ({case.attempt.error}), and another one was made in its place",
        )
    if case.attempt.mode is RolloutMode.SHADOW:
        return Finding(
            "shadow",
            f"attempt {case.attempt_id} was answered by a candidate alongside the live version, to be compared with it",
        )
    if case.attempt.mode is RolloutMode.DROPPED:
        return Finding("dropped", f"attempt {case.attempt_id} was taken out of what is trained: {case.dropped}")
    return Finding(
        "evaluation",
        f'attempt {case.attempt_id} was made with mode "evaluate"; leave the mode out of lt.rollout(...) to '
        "have it trained",
    )
