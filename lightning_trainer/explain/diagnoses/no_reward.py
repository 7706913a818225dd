"""A reward that the credit scheme needs is missing: never given, given under another name, or not a number."""

import math

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.samples.transitions.reasons import Reason


def diagnose(case: Case) -> Finding | None:
    """Find calls dropped for want of a reward, and say why none of the stored evaluations supplied it."""
    calls = case.met(Reason.NO_REWARD)
    if not calls:
        return None
    return Finding("no reward", _why(case), whole=len(calls) == len(case.own))


def _why(case: Case) -> str:
    names = case.policy.reward_weights
    rewards = listed(map(repr, names))
    given = [evaluation for evaluation in case.reading.evaluations if evaluation.name in names]
    if case.group is not None and (sentence := case.judged.build.rewards.incomplete.get(case.group.group_id)):
        return sentence
    if not given and case.feedback:
        return (
            f"feedback on attempt {case.attempt_id} is stored ({counted(case.feedback, 'piece')}) and has not become "
            f"{rewards}: it has another name, waits in quarantine, or its sources weigh too little; "
            "`lightning-trainer feedback` says which"
        )
    if not given:
        others = sorted({evaluation.name for evaluation in case.reading.evaluations})
        if others:
            return (
                f"attempt {case.attempt_id} has evaluations named {listed(map(repr, others))}, and the reward of "
                f'policy {case.policy.name} is {rewards}; set reward = "{others[0]}", or give the evaluation that name'
            )
        return (
            f"nothing scored attempt {case.attempt_id}, and missing is not zero; call lt.reward(...) inside the "
            f"rollout, or send {rewards} to POST /rewards"
        )
    numbers = [e for e in given if e.value is not None and math.isfinite(e.value)]
    if not numbers:
        said = next((f": {e.explanation}" for e in given if e.explanation), "")
        return (
            f"evaluation {given[-1].name!r} of attempt {case.attempt_id} gave no number ({given[-1].value}){said}; a "
            "judge that failed is missing, not zero, so score the attempt again"
        )
    scored = "single calls" if all(e.span_id or e.response_id for e in numbers) else "a part of it"
    return (
        f"only {scored} of attempt {case.attempt_id} were scored, and credit scheme {case.policy.credit.scheme!r} "
        f"needs {rewards} of more; docs/credit.md says of what"
    )
