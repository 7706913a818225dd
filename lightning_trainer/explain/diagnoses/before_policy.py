"""The attempt was recorded while no policy took it: there still is none, or one was added or thawed later."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.types import Fidelity


def diagnose(case: Case) -> Finding | None:
    """Find attempts recorded with no policy configured, before the policy was first started, or while it was frozen."""
    if case.no_policy:
        exact = sum(call.fidelity is Fidelity.EXACT for call in case.calls)
        return Finding(
            "no policy",
            f"{counted(len(case.calls), 'call')} recorded, {exact} with token ids, and the configuration has no "
            "[[policy]] that would train anything",
        )
    policy = case.policy
    if not case.earlier:
        return _while_frozen(policy.name) if case.passed_by else None
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


def _while_frozen(policy: str) -> Finding:
    return Finding(
        "recorded while frozen",
        f"it ended while policy {policy} was frozen (train = false) or not configured, and nothing waits for a step of "
        "it then; what ends now is trained",
    )
