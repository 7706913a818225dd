"""A review in plain numbers, for the daemon's answer and the command."""

from collections import Counter
from typing import Any

from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.samples.feedback.review import Review, State

MOST_SOURCES = 500
"""In one report: those that weigh least first, since they are what it is read for."""


def feedback_report(review: Review, config: FeedbackConfig) -> dict[str, Any]:
    """Return counts by state, and the sources, those that weigh least first."""
    states = Counter(review.states.values())
    sources = sorted(review.standings.values(), key=lambda one: (one.weight, -one.compared, one.source))
    return {
        "feedback": len(review.states),
        "states": {state.value: states.get(state, 0) for state in State},
        "rewards": sum(outcome.value is not None for outcome in review.outcomes),
        "too_little_weight": sum(outcome.value is None for outcome in review.outcomes),
        "quarantine_s": config.quarantine,
        "next_release_ns": review.next_release_ns,
        "sources_total": len(sources),
        "sources": [
            {
                "source": one.source,
                "said": sum(review.by_source.get(one.source, Counter()).values()),
                **{state.value: review.by_source.get(one.source, Counter())[state] for state in State},
                "weight": one.weight,
                "reliability": one.reliability,
                "compared": one.compared,
                "verified": one.verified,
                "wrong_verified": one.wrong_verified,
                "trusted": one.trusted,
                "suspicious": one.suspicious,
            }
            for one in sources[:MOST_SOURCES]
        ],
    }
