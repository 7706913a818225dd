"""One rollout: the cause first, then what was said, its tokens, spans, rewards and ledger."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from lightning_trainer.dashboard.pages.asking import Asked, PageError
from lightning_trainer.dashboard.reading.conversation import Entry, conversation
from lightning_trainer.dashboard.reading.message_images import Image, drawn, find_image
from lightning_trainer.dashboard.reading.one_rollout import OneRollout, read_rollout
from lightning_trainer.dashboard.reading.span_tree import SpanRow, span_rows
from lightning_trainer.dashboard.rendering import visible_markup
from lightning_trainer.dashboard.site import Site
from lightning_trainer.explain import words
from lightning_trainer.explain.explainer import Explainer
from lightning_trainer.explain.explanation import ExplainedAttempt, Verdict
from lightning_trainer.explain.page import NO_TOKENIZER, Shade, largest_advantage, ledger_html, tree_html
from lightning_trainer.explain.words import TextOf, texts_of
from lightning_trainer.report.tokens import legend_html, surprise_legend_html
from lightning_trainer.store.media import table as media_table
from lightning_trainer.store.media.exchange import SCHEME
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.types import AttributeValue, Evaluation, RolloutMode, Span

_MOST_TOKENS = 1_500
"""How many tokens of a call's prompt, and of its answer, are shown."""


@dataclass(frozen=True, slots=True)
class AttemptView:
    """What the page shows of one attempt; ``entries_held`` and ``spans_held`` also count what is left out."""

    explained: ExplainedAttempt
    entries: Sequence[Entry]
    entries_held: int
    spans: Sequence[SpanRow]
    spans_held: int
    evaluations: Sequence[Evaluation]
    facts: str
    tree: Markup
    ledger: Markup


def _cause(one: OneRollout) -> str:
    """Return the headline's color: plain if the rollout was not to be trained, or a rollback has left it behind."""
    if one.explanation is not None and one.explanation.told.good:
        return "good"
    if one.explanation is not None and one.explanation.told.verdict is Verdict.TRAINED:
        return "plain"  # it was trained, and training has since gone back to before that
    return "bad" if any(attempt.mode is RolloutMode.TRAIN for attempt in one.attempts) else "plain"


async def rollout(site: Site, asked: Asked) -> dict[str, Any]:
    """Return one rollout: the explanation, then each attempt's messages, spans, rewards, and ledger."""
    rollout_id = asked.needed("id")
    shade = Shade(asked.among("shade", tuple(Shade)) or Shade.ADVANTAGE)
    one = await site.store.scan(
        lambda connection: read_rollout(connection, rollout_id, Explainer(connection, site.config))
    )
    if one is None:
        raise PageError(f"there is no rollout {rollout_id!r} in the store", 404)
    text_of = await asyncio.to_thread(_texts, one.policy.model) if site.policies else None
    largest = 0.0 if one.explanation is None else largest_advantage(one.explanation)
    attempts = () if one.explanation is None else one.explanation.attempts
    # Even without an explanation, show what was said and recorded.
    entries, entries_held = conversation(one.spans) if not attempts else ([], 0)
    rows, spans_held = span_rows(one.spans) if not attempts else ([], 0)
    return {
        "one": one,
        "headline": None if one.explanation is None else one.explanation.headline,
        "cause": _cause(one),
        "views": await asyncio.to_thread(lambda: [_view(one, text_of, largest, shade) for one in attempts]),
        "entries": entries,
        "entries_held": entries_held,
        "spans": rows,
        "spans_held": spans_held,
        "shade": shade,
        "shades": [(other, asked.link("/rollout", shade=other) + "#tokens") for other in Shade],
        "legend": visible_markup(legend_html() if shade is Shade.ADVANTAGE else surprise_legend_html()),
        "no_tokenizer": None if text_of else NO_TOKENIZER,
        "group_id": one.attempts[-1].group_id if one.attempts else None,
        "may_act": site.live is not None,
        "reward_names": sorted(one.policy.reward_weights) if site.policies else ["reward"],
    }


def _view(attempt: ExplainedAttempt, text_of: TextOf | None, largest: float, shade: Shade) -> AttemptView:
    spans = attempt.case.spans
    entries, held = conversation(spans)
    rows, spans_held = span_rows(spans)
    return AttemptView(
        explained=attempt,
        entries=entries,
        entries_held=held,
        spans=rows,
        spans_held=spans_held,
        evaluations=attempt.case.reading.evaluations,
        facts=words.facts(attempt),
        tree=visible_markup(tree_html(attempt, text_of, largest, shade=shade, most=_MOST_TOKENS)),
        ledger=visible_markup(ledger_html(attempt)),
    )


@lru_cache(maxsize=4)
def _texts(model: str) -> TextOf | None:
    return texts_of(model)


async def span(site: Site, asked: Asked) -> dict[str, Any]:
    """Return one span with all of its attributes."""
    trace_id, span_id = asked.needed("trace"), asked.needed("span")
    found = await _span(site, trace_id, span_id)
    return {"span": found, "attributes": [(name, _shown(value)) for name, value in sorted(found.attributes.items())]}


async def whole_text(site: Site, asked: Asked) -> str:
    """Return the whole text of one attribute of a span."""
    found = await _span(site, asked.needed("trace"), asked.needed("span"))
    value = found.attributes.get(asked.needed("attribute"))
    if value is None:
        raise PageError(f"span {found.span_id} has no attribute {asked.needed('attribute')!r}", 404)
    return _shown(value)


async def picture(site: Site, asked: Asked) -> Image:
    """Return an image in a span's messages."""
    found = await _span(site, asked.needed("trace"), asked.needed("span"))
    messages = found.attributes.get(asked.needed("attribute"))
    name = asked.needed("name")
    image = None
    if isinstance(messages, str) and f"{SCHEME}{name}" in messages:
        kept = await site.store.scan(lambda connection: media_table.select(connection, [name]))
        image = drawn(kept[name].body) if name in kept else None
    elif isinstance(messages, str):
        image = await asyncio.to_thread(find_image, messages, name)
    if image is None:
        raise PageError(f"span {found.span_id} has no image {name!r} that is drawn", 404)
    return image


async def _span(site: Site, trace_id: str, span_id: str) -> Span:
    spans = await site.store.scan(lambda connection: span_table.select_of_trace(connection, trace_id))
    found = next((one for one in spans if one.span_id == span_id), None)
    if found is None:
        raise PageError(f"there is no span {span_id!r} of trace {trace_id!r} in the store", 404)
    return found


def _shown(value: AttributeValue) -> str:
    return f"{len(value):,} bytes" if isinstance(value, bytes) else str(value)
