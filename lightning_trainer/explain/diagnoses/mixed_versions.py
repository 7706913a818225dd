"""Weights were published while the attempt ran, so its calls were sampled by several policy versions."""

from collections import Counter

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed


def diagnose(case: Case) -> Finding | None:
    """Count the policy versions that sampled the attempt's calls; two or more are worth a note."""
    own = [call for call in case.own if call.policy == case.policy.name]  # other policies number their own versions
    versions = Counter(call.policy_version for call in own if call.policy_version is not None)
    if len(versions) < 2:
        return None
    counts = listed((f"version {version}: {counted(calls, 'call')}" for version, calls in sorted(versions.items())), 8)
    return Finding(
        "mixed versions",
        f"weights were published while attempt {case.attempt_id} ran ({counts}); every token keeps the version and the "
        "log-probability that it was sampled with, and one reward is about all of them",
        blocks=False,
    )
