"""An explanation as a page: the token tree with every token in it once, colored by mask and advantage."""

from html import escape

from lightning_trainer.explain import words
from lightning_trainer.explain.drawn_tree import NO_TOKENIZER, largest_advantage, ledger_html, tree_html
from lightning_trainer.explain.explanation import ExplainedAttempt, Explanation, Verdict
from lightning_trainer.explain.words import TextOf
from lightning_trainer.report.markup import document, paragraph, section
from lightning_trainer.report.tokens import legend_html


def render(explanation: Explanation, text_of: TextOf | None) -> str:
    """Return the whole page.

    Args:
        text_of: decodes a token id; None if there is no tokenizer: then ids are shown.
    """
    largest = largest_advantage(explanation)
    sections = [_header(explanation)]
    for attempt in explanation.attempts:
        sections += [_rewards(attempt), _tree(attempt, text_of, largest), _ledger(attempt), _notes(attempt)]
    return document(f"{explanation.rollout_id} · lightning-trainer explain", filter(None, sections))


def _header(explanation: Explanation) -> str:
    taken = explanation.told.verdict in (Verdict.TRAINED, Verdict.IN_TRAINING, Verdict.WOULD)
    return (
        '<header><p class="brand">lightning-trainer explain</p>'
        f"<h1>Rollout {escape(explanation.rollout_id)}</h1>"
        f'<p class="{"good" if taken else "bad"}">{escape(explanation.headline)}</p></header>'
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
