"""An explanation as JSON, with the names of the terminal's table and of the ledger."""

from typing import Any

from lightning_trainer.explain.explanation import ExplainedAttempt, ExplainedCall, Explanation
from lightning_trainer.types import Outcome


def as_json(explanation: Explanation) -> dict[str, Any]:
    """Return a JSON-able value; unknown values are None."""
    return {
        "rollout_id": explanation.rollout_id,
        "headline": explanation.headline,
        "verdict": explanation.told.verdict.value,
        "attempts": [_attempt(attempt) for attempt in explanation.attempts],
    }


def _attempt(explained: ExplainedAttempt) -> dict[str, Any]:
    case, attempt = explained.case, explained.case.attempt
    step = case.judged.step
    return {
        "attempt_id": case.attempt_id,
        "task_id": None if attempt is None else attempt.task_id,
        "group_id": None if attempt is None else case.group.group_id if case.group else attempt.group_id,
        "group_members": [member.attempt_id for member in case.members],
        "mode": None if attempt is None else attempt.mode.value,
        "state": None if attempt is None else attempt.state.value,
        "error": None if attempt is None else attempt.error,
        "started_ns": None if attempt is None else attempt.started_ns,
        "ended_ns": None if attempt is None else attempt.ended_ns,
        "policy": None if case.no_policy else case.policy.name,
        "step": None if step is None else step.step,
        "reward": explained.reward,
        "evaluations": [
            {
                "name": one.name,
                "value": one.value,
                "agent": one.agent,
                "response_id": one.response_id,
                "source": one.source,
                "explanation": one.explanation,
            }
            for one in case.reading.evaluations
        ],
        "spans": len(case.spans),
        "verdict": explained.verdict.value,
        "headline": explained.headline,
        "findings": [
            {"name": finding.name, "sentence": finding.sentence, "blocks": finding.blocks}
            for finding in explained.findings
        ],
        "calls": [_call(call) for call in explained.calls],
        "ledger": [
            {
                "agent": row.agent,
                "policy": row.policy,
                "policy_version": row.policy_version,
                "outcome": row.outcome.value,
                "reason": row.reason,
                "tokens": row.tokens,
                "calls": row.calls,
            }
            for row in explained.ledger
        ],
        "sampled_tokens": explained.sampled_tokens,
        "balances": explained.balances,
        "problems": list(explained.problems),
    }


def _call(explained: ExplainedCall) -> dict[str, Any]:
    node, call = explained.node, explained.node.call
    return {
        "number": node.number,
        "call_id": call.call_id,
        "response_id": call.response_id,
        "agent": call.agent,
        "policy": call.policy,
        "policy_version": call.policy_version,
        "extends": node.parent,
        "parts_from": node.beside,
        "state": call.state,
        "shared_tokens": node.shared,
        "prompt_tokens": len(call.prompt_ids),
        "sampled_tokens": len(call.response_ids),
        "trained_tokens": explained.trained_tokens if explained.call_outcome.outcome is Outcome.TRAINED else 0,
        "outcome": explained.call_outcome.outcome.value,
        "reason": explained.call_outcome.reason,
        "explanation": explained.call_outcome.explanation,
        "reward": explained.reward,
        "credit": explained.credit,
        "advantages": None if explained.advantages is None else list(explained.advantages),
    }
