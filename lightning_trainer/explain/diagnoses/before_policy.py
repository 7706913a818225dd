"""The attempt was recorded while there was no policy: there still is none, or one was added later."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.types import Fidelity


def diagnose(case: Case) -> Finding | None:
    """Find attempts recorded with no policy configured, or before the policy was first started."""
    if case.no_policy:
        exact = sum(call.fidelity is Fidelity.EXACT for call in case.calls)
        return Finding(
            "no policy",
            f"{counted(len(case.calls), 'call')} recorded, {exact} with token ids, and the configuration has no "
            "[[policy]] that would train anything",
        )
    if not case.earlier:
        return None
    policy = case.policy
    return Finding(
        "recorded before",
        f"it was recorded before policy {policy.name} was first started, and training begins with what comes after; "
        + (
            "train_recorded = true in its [[policy]] trains it too"
            if policy.trusted
            else "only calls with token ids of an engine that [[policy.trusted]] names could be trained, with "
            "train_recorded = true"
        ),
    )
