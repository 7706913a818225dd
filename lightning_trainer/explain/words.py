"""Phrases shared by the terminal and the page: an attempt's facts, and a call's outcome, position, and numbers."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeAlias

from lightning_trainer.explain.call_tree import CallNode
from lightning_trainer.explain.case import Case
from lightning_trainer.explain.explanation import ExplainedAttempt, ExplainedCall
from lightning_trainer.explain.finding import counted, seconds
from lightning_trainer.models.resolve import found_model, model_cache
from lightning_trainer.types import Outcome

# Decoding token ids, with the tokenizer of the policy's model if it is on this machine.

TextOf: TypeAlias = Callable[[int], str]


def texts_of(model: str | None) -> TextOf | None:
    """Return a decoder of ids; None if the model or its tokenizer is not on this machine: nothing is downloaded.

    Args:
        model: as in the configuration; None if that has no policy.
    """
    folder = None if model is None else found_model(model, model_cache())
    if folder is None or not (folder / "tokenizer.json").is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return cache(lambda token_id: tokenizer.decode([token_id], skip_special_tokens=False))


_MOST_EVALUATIONS = 50
"""Number of newest evaluations shown."""


def facts(attempt: ExplainedAttempt) -> str:
    """Return one line of facts about an attempt, without its calls."""
    case, one = attempt.case, attempt.case.attempt
    if one is None:
        return f"spans name the rollout and no attempt · {counted(len(case.spans), 'span')}"
    took = f" in {seconds(one.ended_ns - one.started_ns)}" if one.ended_ns is not None else ""
    group = case.group.group_id if case.group else one.group_id
    return " · ".join(
        (
            f"attempt {one.attempt_id}",
            f"task {one.task_id}",
            f"group {group} ({counted(max(1, len(case.members)), 'attempt')})",
            f"{one.state}{took}" + (f": {one.error}" if one.error else ""),
            "no policy" if case.no_policy else f"policy {case.policy.name}{_taken(case)}",
            f"reward {number(attempt.reward)}",
            counted(len(case.spans), "span"),
        )
    )


def evaluations(attempt: ExplainedAttempt) -> Iterator[str]:
    """Yield who gave the attempt a reward, or failed to, and why; evaluations that say neither are left out."""
    told = [one for one in attempt.case.reading.evaluations if one.source or one.explanation]
    for one in told[-_MOST_EVALUATIONS:]:
        about = "" if one.agent is None else f" for agent {one.agent}"
        about = about if one.response_id is None else f" for response {one.response_id}"
        given = "no number" if one.value is None else f"{one.value:g}"
        by = "" if one.source is None else f" by {one.source}"
        yield f"{one.name} {given}{about}{by}" + (f": {one.explanation}" if one.explanation else "")


def _taken(case: Case) -> str:
    if case.from_files:
        return ""
    step = case.judged.step
    back = ", rolled back" if case.judged.left_behind is not None else ""
    return f", step {step.step} ({step.state}{back})" if step else ", no step"


def meanings(attempt: ExplainedAttempt) -> Iterator[str]:
    """Yield the meaning of each outcome in the tree once, with the calls that have it."""
    met: dict[tuple[str, str], list[int]] = {}
    for call in attempt.calls:
        met.setdefault((call_outcome(call), call.call_outcome.explanation), []).append(call.node.number)
    for (name, explanation), numbers in met.items():
        which = "all calls" if len(numbers) == len(attempt.calls) > 1 else f"call{'s' * (len(numbers) > 1)} "
        listed = "" if which == "all calls" else ", ".join(map(str, numbers[:8])) + (" ..." if len(numbers) > 8 else "")
        yield f"{which}{listed}: {name}. {explanation}"


def balance(attempt: ExplainedAttempt) -> str:
    """Return a sentence that says whether every sampled token is in the ledger exactly once."""
    accounted = sum(row.tokens for row in attempt.ledger)
    verdict = "it balances" if attempt.balances else "it does not balance"
    return f"{counted(attempt.sampled_tokens, 'sampled token')} recorded, {accounted:,} accounted for: {verdict}"


def call_outcome(call: ExplainedCall) -> str:
    """Return "trained", or the outcome with its reason."""
    return (
        str(call.call_outcome.outcome)
        if call.call_outcome.outcome is Outcome.TRAINED
        else f"{call.call_outcome.outcome}: {call.call_outcome.reason}"
    )


def after(node: CallNode) -> str:
    """Return the call that a call follows in the token tree: 3, 3@14 if it forks from it at token 14, or a dash."""
    if node.parent is not None:
        return str(node.parent)
    return "-" if node.beside is None else f"{node.beside}@{node.shared}"


def version(call: ExplainedCall, policy: str) -> str:
    """Return the policy version that sampled a call: v3, or other@v3 if it is not of ``policy``."""
    return version_name(call.node.call.policy, call.node.call.policy_version).removeprefix(f"{policy}@")


def version_name(policy: str | None, version: int | None) -> str:
    """Return a version as POLICY@vN, or a dash."""
    return "-" if policy is None else f"{policy}@v{'?' if version is None else version}"


def number(value: float | None) -> str:
    """Return a number for display, or a dash."""
    return "-" if value is None else f"{value:g}"


def mean_advantage(call: ExplainedCall) -> str:
    """Return the advantage of a call's tokens, or their mean if they differ."""
    values = call.advantages or ()
    if call.mask is not None:
        values = [value for value, trained in zip(values, call.mask, strict=False) if trained]
    if not values:
        return "-"
    return f"{'' if max(values) == min(values) else '~'}{sum(values) / len(values):+.3g}"


def width_of_names(names: Iterable[str]) -> int:
    """Return how many terminal columns the longest of some names needs, at most 40."""
    return min(40, max(map(len, names), default=0))
