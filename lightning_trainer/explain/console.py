"""An explanation for a terminal: the cause, the token tree of the calls, the ledger, and other findings."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from lightning_trainer.explain import words
from lightning_trainer.explain.answer import Answer
from lightning_trainer.explain.call_tree import in_order
from lightning_trainer.explain.explanation import ExplainedAttempt, ExplainedCall, Explanation, Verdict
from lightning_trainer.explain.finding import counted
from lightning_trainer.explain.words import version_name, width_of_names
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.tables.rollouts import RolloutRow
from lightning_trainer.types import Call, LedgerRow, Outcome, RolloutMode

_MOST_CALLS = 200
_UNTRAINED: Mapping[str, str] = {
    RolloutMode.EVALUATE: "evaluation",
    RolloutMode.BASELINE: "baseline",
    RolloutMode.RECORD: "recorded",
    RolloutMode.RETRIED: "retried",
    RolloutMode.SHADOW: "shadow",
    RolloutMode.DROPPED: "dropped",
}
_PARTLY = (Verdict.TRAINED, Verdict.IN_PART, Verdict.WOULD_IN_PART)
"""Shown in yellow unless the attempt is ``good``: part of it is not trained, or training has left it behind."""
_OUTCOME_COLORS = {Outcome.TRAINED: "green", Outcome.DEDUPLICATED: "dim"}


def show_answer(told: Answer, console: Console) -> None:
    """Print the list, the only explanation, or the first line of each of several."""
    if told.listed is not None:
        if told.listed:
            show_list(told.listed, console)
            _say(console, "explain one by its id, its task, their beginning or a pattern; --last is the first", "dim")
        else:
            _say(console, told.nothing)
    elif len(told.explained) == 1 and isinstance(one := told.explained[0], Explanation):
        show(one, console)
    else:
        for one in told.explained:
            _say(console, one.headline)
        if told.left_out:
            _say(console, f"and {told.left_out} older ones; name them more exactly", "dim")
    _list(console, "left out", tuple(dict.fromkeys(told.problems)))


def show(explanation: Explanation, console: Console) -> None:
    """Print the whole explanation; the first line is the cause."""
    told = explanation.told
    color = "green" if told.good else "yellow" if told.verdict in _PARTLY else "red"
    _say(console, explanation.headline, f"bold {color}")
    for attempt in explanation.attempts:
        console.print()
        if len(explanation.attempts) > 1:
            _say(console, attempt.headline, "bold")
        _say(console, words.facts(attempt), "dim")
        _list(console, "rewards", tuple(words.evaluations(attempt)))
        if attempt.calls:
            console.print(_calls(attempt))
        if len(attempt.calls) > _MOST_CALLS:
            _say(console, f"and {counted(len(attempt.calls) - _MOST_CALLS, 'call')} more: --html draws them all", "dim")
        for sentence in words.meanings(attempt):
            _say(console, sentence)
        if attempt.ledger:
            console.print()
            _say(console, "ledger", "bold")
            console.print(ledger_table(attempt.ledger, in_words=False))
            _say(console, words.balance(attempt), "dim")
        _list(console, "also", [f"{finding.name}: {finding.sentence}" for finding in attempt.findings[1:]])
        _list(console, "problems", attempt.problems)


def show_list(rows: Sequence[RolloutRow], console: Console) -> None:
    """Print the newest rollouts, for a user without an id."""
    table = _table()
    table.add_column("rollout", no_wrap=True)
    table.add_column("task", overflow="fold")
    for heading in ("started (UTC)", "state", "step"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        started = datetime.fromtimestamp(row.started_ns / 1e9, UTC)
        state = row.state if row.attempts == 1 else f"{row.state} ({row.attempts} attempts)"
        step = _UNTRAINED.get(row.mode) or ("-" if row.step is None else str(row.step))
        table.add_row(escape(row.rollout_id), escape(row.task_id), f"{started:%m-%d %H:%M:%S}", state, step)
    console.print(table)


def _calls(attempt: ExplainedAttempt) -> Table:
    table = _table()
    table.add_column("call", no_wrap=True)
    table.add_column("after", no_wrap=True)
    agents = (call.node.call.agent or "" for call in attempt.calls[:_MOST_CALLS])
    table.add_column("agent", overflow="fold", min_width=words.width_of_names(agents))
    for heading in ("prompt", "sampled"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("version", overflow="fold")
    case = attempt.case
    would_be = case.waits or case.from_files or case.no_policy or case.earlier or case.passed_by
    table.add_column("would be" if would_be else "outcome", overflow="fold")
    graded = [
        (heading, text)
        for heading, text in (
            ("state", _state),
            ("reward", _reward),
            ("credit", _credit),
            ("advantage", words.mean_advantage),
        )
        if any(text(call) != "-" for call in attempt.calls)
    ]
    for heading, _ in graded:
        table.add_column(heading, justify="left" if heading == "state" else "right", no_wrap=True)
    by_number = {call.node.number: call for call in attempt.calls}
    for node, depth in in_order([call.node for call in attempt.calls])[:_MOST_CALLS]:
        call = by_number[node.number]
        color = _OUTCOME_COLORS.get(call.call_outcome.outcome, "red")
        table.add_row(
            f"{'  ' * min(depth, 8)}{node.number}",
            words.after(node),
            escape(node.call.agent or "(no name)"),
            _tokens(node.call.prompt_ids, node.call),
            _tokens(node.call.response_ids, node.call),
            escape(words.version(call, attempt.case.policy.name)),
            f"[{color}]{escape(words.call_outcome(call))}[/]",
            *(text(call) for _, text in graded),
        )
    return table


def _tokens(ids: Sequence[int], call: Call) -> str:
    """Format a token count, which is unknown, not zero, for a call with only text."""
    return f"{len(ids):,}" if call.prompt_ids or call.response_ids else "-"


def _state(call: ExplainedCall) -> str:
    return "-" if call.node.call.state is None else escape(call.node.call.state)


def _reward(call: ExplainedCall) -> str:
    return words.number(call.reward)


def _credit(call: ExplainedCall) -> str:
    return words.number(call.credit)


def _table() -> Table:
    return Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")


def _list(console: Console, heading: str, sentences: Sequence[str]) -> None:
    if sentences:
        console.print()
        _say(console, heading, "bold")
    for sentence in sentences:
        _say(console, f"- {sentence}")


def _say(console: Console, text: str, style: str = "") -> None:
    # We never wrap lines: the terminal does, and `| head -1` gets a whole one.
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def ledger_table(rows: Iterable[LedgerRow], *, in_words: bool) -> Table:
    """Return the ledger as a table.

    Args:
        in_words: also say what each reason means; only if each row's reason is a ``Reason``.
    """
    rows = list(rows)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("agent", overflow="fold", min_width=width_of_names(row.agent for row in rows))
    for heading in ("version", "outcome"):
        table.add_column(heading, overflow="fold")
    for heading in ("tokens", "calls"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("reason", overflow="fold")
    for row in rows:
        meaning = f": {escape(Reason(row.reason).explanation)}" if in_words else ""
        table.add_row(
            escape(row.agent),
            escape(version_name(row.policy, row.policy_version)),
            row.outcome.value,
            f"{row.tokens:,}",
            f"{row.calls:,}",
            f"[bold]{row.reason}[/]{meaning}",
        )
    return table
