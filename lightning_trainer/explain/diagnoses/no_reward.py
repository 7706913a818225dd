"""A reward that the credit scheme needs is missing: never given, given under another name, or not a number."""

import math

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Evaluation


def diagnose(case: Case) -> Finding | None:
    """Find calls dropped because a reward is missing, and say why none of the stored evaluations supplied it."""
    calls = case.met(Reason.NO_REWARD)
    if not calls:
        return None
    return Finding("no reward", _why(case), whole=len(calls) == len(case.own))


def _why(case: Case) -> str:
    names = case.policy.reward_weights
    rewards = listed(map(repr, names))
    given = [evaluation for evaluation in case.reading.evaluations if evaluation.name in names]
    corrections = case.judged.build.corrections
    if refused := [why for name in names if name in corrections and (why := corrections[name].refused) is not None]:
        return refused[0]
    if case.group is not None and (sentence := case.judged.build.rewards.incomplete.get(case.group.group_id)):
        return sentence
    if not given and case.feedback:
        return (
            f"feedback on attempt {case.attempt_id} is stored ({counted(case.feedback, 'piece')}) and has not become "
            f"{rewards}: it has another name, waits in quarantine, exceeds an hour's cap, or its sources weigh too "
            "little; `lightning-trainer feedback` says which"
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
            f"rollout, or send {rewards} to POST /lightning/rollouts/{case.rollout_id}/rewards"
        )
    numbers = [e for e in given if e.value is not None and math.isfinite(e.value)]
    if not numbers:
        said = next((f": {e.explanation}" for e in given if e.explanation), "")
        return (
            f"evaluation {given[-1].name!r} of attempt {case.attempt_id} gave no number ({given[-1].value}){said}; a "
            "judge that failed is missing, not zero, so score the attempt again"
        )
    credit = case.policy.credit
    kinds = {_kind(evaluation) for evaluation in numbers}
    if kinds <= set(credit.unused):
        return (
            f"{_SCORED[min(kinds)].format(case.attempt_id)}, which credit scheme {credit.scheme!r} does not use; score "
            "what it uses, or choose a scheme of docs/credit.md that uses such rewards"
        )
    return (
        f"only a part of what credit scheme {credit.scheme!r} needs {rewards} of was scored in attempt "
        f"{case.attempt_id}; docs/credit.md says of what"
    )


_SCORED = {
    "agents": "single agents of attempt {} were scored",
    "attempts": "attempt {} was scored as a whole",
    "calls": "single calls of attempt {} were scored",
}
"""By the kind of reward, as in ``CreditSettings.unused``."""


def _kind(evaluation: Evaluation) -> str:
    if evaluation.span_id is not None or evaluation.response_id is not None:
        return "calls"
    return "attempts" if evaluation.agent is None else "agents"
