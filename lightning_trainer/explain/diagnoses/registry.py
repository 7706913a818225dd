"""Every diagnosis, in the order in which a cause hides the ones after it.

Causes in a call's identity come first, then those in what was recorded of it, in its length and reward, and in its
group. A cause that only some calls have comes after one that all of them have; findings that block nothing come last,
the rarest first.
"""

from collections.abc import Callable
from typing import TypeAlias

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.diagnoses import (
    before_policy,
    evaluation,
    group,
    mixed_versions,
    no_reward,
    other_reasons,
    over_length,
    rolled_back,
    running,
    waiting,
)
from lightning_trainer.explain.diagnoses.capture import (
    agent_name,
    clock_skew,
    deleted,
    duplicates,
    interrupted,
    missing_parent,
    no_calls,
    retokenized,
    sampling,
    text_only,
)
from lightning_trainer.explain.finding import Finding

Diagnosis: TypeAlias = Callable[[Case], Finding | None]
"""A pure function that looks for one cause: it returns a finding with what to do, or None if the cause is absent."""

DIAGNOSES: tuple[Diagnosis, ...] = (
    evaluation.diagnose,
    deleted.diagnose,
    no_calls.diagnose,
    before_policy.diagnose,
    missing_parent.diagnose,
    agent_name.diagnose,
    running.diagnose,
    text_only.diagnose,
    text_only.diagnose_elsewhere,
    interrupted.diagnose,
    sampling.diagnose,
    over_length.diagnose,
    no_reward.diagnose,
    group.diagnose,
    other_reasons.diagnose,
    waiting.diagnose,
    rolled_back.diagnose,
    clock_skew.diagnose,
    retokenized.diagnose,
    mixed_versions.diagnose,
    duplicates.diagnose,
)

OF_WHAT_WAS_RECORDED: tuple[Diagnosis, ...] = (
    deleted.diagnose,
    no_calls.diagnose,
    before_policy.diagnose,
    missing_parent.diagnose,
    interrupted.diagnose,
    clock_skew.diagnose,
    duplicates.diagnose,
)
"""Diagnoses that need no policy; those of names, rewards, groups, and steps depend on a policy's settings."""


def findings(case: Case) -> tuple[Finding, ...]:
    """Return the findings that explain the case: first those that block all of it, then part of it, then nothing; each
    kind in the order of the list."""
    diagnoses = OF_WHAT_WAS_RECORDED if case.no_policy else DIAGNOSES
    found = [finding for diagnose in diagnoses if (finding := diagnose(case)) is not None]
    return tuple(sorted(found, key=lambda finding: (not finding.blocks, not finding.whole)))
