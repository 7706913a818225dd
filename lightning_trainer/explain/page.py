"""An explanation as a page: the token tree with every token in it once, colored by mask and advantage. The tree and the
ledger of an attempt are also components of the dashboard's pages.

Each call shows the tokens that it adds to the call that it extends: prompt in gray, sampled in color.
"""

from collections.abc import Sequence
from enum import StrEnum
from html import escape

from lightning_trainer.explain import words
from lightning_trainer.explain.call_tree import in_order
from lightning_trainer.explain.explanation import ExplainedAttempt, ExplainedCall, Explanation, Verdict
from lightning_trainer.explain.finding import counted
from lightning_trainer.explain.words import TextOf
from lightning_trainer.report.markup import document, folded, paragraph, section, table
from lightning_trainer.report.tokens import advantage_css, legend_html, surprise_css, token_html
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Outcome


def render(explanation: Explanation, text_of: TextOf | None) -> str:
    """Return the whole page.

    Args:
        text_of: decodes a token id; None if there is no tokenizer, then ids are shown.
    """
    largest = largest_advantage(explanation)
    sections = [_header(explanation)]
    for attempt in explanation.attempts:
        sections += [_rewards(attempt), _tree(attempt, text_of, largest), _ledger(attempt), _notes(attempt)]
    return document(f"{explanation.rollout_id} · lightning-trainer explain", filter(None, sections))


def _header(explanation: Explanation) -> str:
    told = explanation.told
    css = "good" if told.good else "plain" if told.verdict is Verdict.TRAINED else "bad"
    return (
        '<header><p class="brand">lightning-trainer explain</p>'
        f"<h1>Rollout {escape(explanation.rollout_id)}</h1>"
        f'<p class="{css}">{escape(explanation.headline)}</p></header>'
    )


def _rewards(attempt: ExplainedAttempt) -> str:
    said = "".join(f"<li>{escape(text)}</li>" for text in words.evaluations(attempt))
    return section("Rewards", f"<ul>{said}</ul>") if said else ""


def _tree(attempt: ExplainedAttempt, text_of: TextOf | None, largest: float) -> str:
    return section(
        "Token tree",
        f'<p class="facts">{escape(words.facts(attempt))}</p>',
        legend_html(),
        paragraph("Point at a token, or tap it, for its id and numbers.", "" if text_of else escape(NO_TOKENIZER)),
        tree_html(attempt, text_of, largest),
    )


def _ledger(attempt: ExplainedAttempt) -> str:
    return section("Ledger", ledger_html(attempt)) if attempt.ledger else ""


def _notes(attempt: ExplainedAttempt) -> str:
    said = [f"{finding.name}: {finding.sentence}" for finding in attempt.findings] + list(attempt.problems)
    return section("What was found", f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in said)}</ul>") if said else ""


NO_TOKENIZER = "The model's tokenizer is not on this machine, so tokens are shown as their ids."
_SHOWN_AT_ONCE = 60
"""Number of prompt tokens shown; earlier ones are collapsed."""
_MOST = 2**31


class Shade(StrEnum):
    """The meaning of a sampled token's color."""

    ADVANTAGE = "advantage"
    SURPRISE = "surprise"
    """-log p of the token under the distribution that sampled it: the mean over many tokens estimates the entropy."""


def largest_advantage(explanation: Explanation) -> float:
    """Return the largest absolute advantage in the rollout: the scale of its colors."""
    sizes = (abs(value) for a in explanation.attempts for call in a.calls for value in call.advantages or ())
    return max(sizes, default=0.0)


def tree_html(
    attempt: ExplainedAttempt,
    text_of: TextOf | None,
    largest: float,
    *,
    shade: Shade = Shade.ADVANTAGE,
    most: int = _MOST,
) -> str:
    """Return the attempt's calls, each after the one that it extends.

    Args:
        text_of: decodes a token id; None if there is no tokenizer, then ids are shown.
        largest: the scale of the advantages, see ``largest_advantage``.
        most: number of tokens shown: the last ones of a prompt and the first ones of an answer; the rest is counted.
    """
    by_number = {call.node.number: call for call in attempt.calls}
    return "".join(
        _call(by_number[node.number], forks, text_of, largest, shade, most)
        for node, forks in in_order([call.node for call in attempt.calls])
    )


def _call(call: ExplainedCall, forks: int, text_of: TextOf | None, largest: float, shade: Shade, most: int) -> str:
    node = call.node
    facts = [
        node.call.agent or "(no name)",
        words.version_name(node.call.policy, node.call.policy_version),
        words.call_outcome(call),
        *(() if node.call.state is None else (f"state {node.call.state}",)),
        *(
            f"{name} {text}"
            for name, text in (
                ("reward", words.number(call.reward)),
                ("credit", words.number(call.credit)),
                ("advantage", words.mean_advantage(call)),
            )
            if text != "-"
        ),
        f"{len(node.call.prompt_ids):,} prompt + {len(node.call.response_ids):,} sampled",
    ]
    new = node.new_prompt_ids
    left_out = max(0, len(new) - most)
    shown = [token_html(_text(i, text_of), "m", f"token {i} · shown, never trained") for i in new[left_out:]]
    earlier, last = shown[:-_SHOWN_AT_ONCE], shown[-_SHOWN_AT_ONCE:]
    tokens = "".join(
        [
            f"<small>{counted(left_out, 'prompt token')} before these</small> " if left_out else "",
            folded(f"{len(earlier):,} earlier prompt tokens", "".join(earlier)) if earlier else "",
            *last,
            *_sampled(call, text_of, largest, shade, most),
        ]
    )
    return (
        f'<article class="branch forks-{min(forks, 8)}" id="call-{node.number}"><h3>Call {node.number}'
        f"<small>{escape(_after(call))}</small></h3>"
        f'<p class="facts">{escape(" · ".join(facts))}</p>'
        f'<div class="tokens">{tokens or "no token ids"}</div></article>'
    )


def _after(call: ExplainedCall) -> str:
    node = call.node
    if node.parent is not None:
        return f" extends call {node.parent}"
    if node.beside is None:
        return ""
    return f" begins with {counted(node.shared, 'token')} of call {node.beside}, then parts from it"


def _sampled(call: ExplainedCall, text_of: TextOf | None, largest: float, shade: Shade, most: int) -> list[str]:
    ids = call.node.call.response_ids
    logprobs: Sequence[float | None] = call.node.call.behavior_logprobs or (None,) * len(ids)
    advantages: Sequence[float | None] = call.advantages or (None,) * len(ids)
    trained = call.call_outcome.outcome is Outcome.TRAINED
    mask = (1,) * len(ids) if call.mask is None else call.mask
    tokens = []
    for index, token_id in enumerate(ids[:most]):
        logprob = logprobs[index] if index < len(logprobs) else None
        title = f"token {token_id} · call {call.node.number}, sampled" + (
            "" if logprob is None else f" · logprob {logprob:.4f}, surprise {-logprob:.4f} nats"
        )
        if trained and index >= len(mask):
            css, title = "u", f"{title} · {Reason.CUT}"
        elif trained and not mask[index]:
            css, title = "u", f"{title} · {Reason.NO_CHOICE}: nothing else was left to choose from"
        elif trained:
            advantage = advantages[index]
            known = "not known yet" if advantage is None else f"{advantage:+.4f}"
            css, title = advantage_css(advantage, largest), f"{title} · advantage {known}"
        else:
            css, title = "u", f"{title} · {words.call_outcome(call)}"
        if shade is Shade.SURPRISE:
            css = surprise_css(logprob)
        tokens.append(token_html(_text(token_id, text_of), css, title))
    if len(ids) > most:
        tokens.append(f" <small>and {counted(len(ids) - most, 'sampled token')} more</small>")
    return tokens


def _text(token_id: int, text_of: TextOf | None) -> str:
    return f"{token_id} " if text_of is None else text_of(token_id)


def ledger_html(attempt: ExplainedAttempt) -> str:
    """Return the ledger as a table, whether it balances, and the meaning of each outcome."""
    rows = [
        [
            escape(cell)
            for cell in (row.agent, words.version_name(row.policy, row.policy_version), row.outcome, row.reason)
        ]
        + [f"{row.tokens:,}", f"{row.calls:,}"]
        for row in attempt.ledger
    ]
    head = ["agent", "version", "outcome", "reason", "tokens", "calls"]
    meanings = "".join(f"<li>{escape(sentence)}</li>" for sentence in words.meanings(attempt))
    return (
        f"{table(head, rows, text_columns=4)}{paragraph(escape(words.balance(attempt)))}"
        f'<ul class="meanings">{meanings}</ul>'
    )
