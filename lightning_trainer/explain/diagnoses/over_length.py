"""Calls that are longer than a sample may be."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.samples.transitions.reasons import Reason


def diagnose(case: Case) -> Finding | None:
    """Find calls whose sample exceeds ``max_sample_tokens``, and describe the longest."""
    calls = case.met(Reason.OVER_LENGTH)
    if not calls:
        return None
    longest = max(calls, key=lambda call: len(call.prompt_ids) + len(call.response_ids))
    prompt, sampled = len(longest.prompt_ids), len(longest.response_ids)
    return Finding(
        "over-long",
        f"{_which(len(calls), len(case.own))} longer than max_sample_tokens = "
        f"{case.policy.max_sample_tokens} (the longest, call {case.number(longest)}, has {prompt + sampled:,} tokens: "
        f"{prompt:,} prompt and {sampled:,} sampled); raise it, or shorten what the agent sends",
        whole=len(calls) == len(case.own),
    )


def _which(calls: int, of: int) -> str:
    which = f"its {counted(of, 'call')}" if calls == of else f"{calls} of its {counted(of, 'call')}"
    return f"{which} {'is' if calls == 1 else 'are'}"
