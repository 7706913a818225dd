"""All stored feedback, reviewed together: what counts, what waits, what is left out, and the rewards it makes.

A pure function of what is stored and of the time, so that the daemon, the command, and a test agree.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lightning_trainer.config.policies.policy import matches
from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.samples.feedback.standing import Opinion, Standing, standings

_HOUR_NS = 3600 * 10**9
MOST_SOURCES = 500
"""Limit on the sources in one report; those that weigh least come first, since people read a report to find them."""


class State(StrEnum):
    """What becomes of one piece of feedback."""

    COUNTED = "counted"
    QUARANTINED = "quarantined"
    CAPPED = "capped"
    """Its source, or all sources together, had exceeded the hour's limit."""
    UNMATCHED = "unmatched"
    """Its subject has not been seen."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Feedback as the store keeps it."""

    trace_id: str
    span_id: str
    source: str
    kind: str
    name: str
    attempt_id: str | None
    """None if its subject has not been seen."""
    response_id: str | None
    value: float | None
    taken_back: bool
    edited: bool
    given_ns: int
    received_ns: int
    """By the daemon's clock."""

    @property
    def withdraws(self) -> bool:
        """Whether it only takes feedback back: it makes no reward, so it neither waits nor counts against a cap."""
        return self.taken_back and not self.edited

    @property
    def key(self) -> tuple[str, str]:
        """Return the trace id and span id, which identify its event."""
        return self.trace_id, self.span_id


@dataclass(frozen=True, slots=True)
class Outcome:
    """The reward that feedback makes of one attempt, or of one call, under one name."""

    attempt_id: str
    response_id: str | None
    """None: the reward is the attempt's."""
    name: str
    value: float | None
    """None: the sources together do not weigh enough."""
    sources: tuple[tuple[str, float, float], ...]
    """Source, what it says, its weight."""

    @property
    def target(self) -> str:
        """Return the key of what was scored; equal for the same attempt or call under the same name."""
        return target_of(self.attempt_id, self.response_id, self.name)

    @property
    def why(self) -> str:
        """Return one sentence that names no source, because it stays when a source is forgotten."""
        voices = f"{len(self.sources)} source{'s' * (len(self.sources) != 1)}"
        said = ", ".join(f"{value:.2g} (weight {weight:.2f})" for _, value, weight in self.sources[:8])
        return f"{voices}: {said}{' ...' * (len(self.sources) > 8)}"


@dataclass(frozen=True, slots=True)
class Review:
    """The state of all stored feedback, and the rewards made from it."""

    states: Mapping[tuple[str, str], State]
    """By the key of its span."""
    standings: Mapping[str, Standing]
    """By source."""
    outcomes: tuple[Outcome, ...]
    next_release_ns: int | None
    """When the next piece of feedback leaves quarantine, at the earliest; None if there is none in it."""
    by_source: Mapping[str, Counter[State]] = field(default_factory=dict)
    over_cap: frozenset[str] = frozenset()
    """Sources with feedback that does not count because of the current hour's caps."""


def target_of(attempt_id: str, response_id: str | None, name: str) -> str:
    """Return a key that is equal for the same attempt or call under the same name."""
    return "\n".join((attempt_id, response_id or "", name))


def is_trusted(source: str, config: FeedbackConfig) -> bool:
    """Whether a source has neither quarantine nor cap."""
    return bool(config.trusted) and matches(source, config.trusted)


def quarantine_ns(config: FeedbackConfig) -> int:
    """Return how long feedback waits, in nanoseconds."""
    return int(config.quarantine * 1e9)


def hour_began_ns(at_ns: int) -> int:
    """Return the start of the hour whose caps apply at this time."""
    return at_ns - at_ns % _HOUR_NS


def within_caps(said: Mapping[str, int], config: FeedbackConfig) -> dict[str, int]:
    """Return, by source, how much of what it said in an hour is within its own cap; trusted sources are left out."""
    return {one: min(number, config.source_per_hour) for one, number in said.items() if not is_trusted(one, config)}


def review(kept: Sequence[Kept], verified: Mapping[str, float], config: FeedbackConfig, now_ns: int) -> Review:
    """Review all feedback.

    Args:
        kept: in any order.
        verified: rewards that are known to be right, by attempt id.
    """
    trusted = {one for one in {k.source for k in kept} if is_trusted(one, config)}
    states = dict(_states(kept, config, trusted, now_ns))
    waits_ns = quarantine_ns(config)
    releases = [one.received_ns + waits_ns for one in kept if states[one.key] is State.QUARANTINED]
    # Feedback that waits makes no reward yet, but it already replaces what its source said before.
    said_of = [one for one in kept if states[one.key] in (State.COUNTED, State.QUARANTINED)]
    counted = [one for one in said_of if states[one.key] is State.COUNTED]
    about = {_target(one, config): one for one in counted if one.value is not None or one.taken_back}
    opinions = [
        Opinion(source, target, one.value)
        for target, latest in _latest(said_of, config).items()
        for source, one in latest.items()
        if one.value is not None and states[one.key] is State.COUNTED
    ]
    right = {target: verified[one.attempt_id or ""] for target, one in about.items() if one.attempt_id in verified}
    standing = standings(opinions, right, trusted)
    by_source: dict[str, Counter[State]] = {}
    for one in kept:
        by_source.setdefault(one.source, Counter())[states[one.key]] += 1
        standing.setdefault(one.source, Standing(one.source, trusted=one.source in trusted))
    said: dict[str, list[tuple[str, float, float]]] = {target: [] for target in about}
    for one in opinions:
        said[one.target].append((one.source, one.value, standing[one.source].weight))
    outcomes = [_outcome(about[target], voices, config) for target, voices in said.items()]
    hour = hour_began_ns(now_ns)
    over = {one.source for one in kept if one.received_ns >= hour and states[one.key] is State.CAPPED}
    return Review(states, standing, tuple(outcomes), min(releases, default=None), by_source, frozenset(over))


def _target(one: Kept, config: FeedbackConfig) -> str:
    return target_of(one.attempt_id or "", one.response_id if config.scores == "call" else None, one.name)


def _latest(said: Sequence[Kept], config: FeedbackConfig) -> dict[str, dict[str, Kept]]:
    """Return, by target and source, the latest rating that its source has not taken back since.

    An entry that takes back names a score of Langfuse's (whose entries share a trace), a response, or the whole
    attempt.
    """

    def by(one: Kept) -> tuple[str | None, str, str]:
        return one.attempt_id, one.name, one.source

    scores = {(by(one), one.trace_id) for one in said if not one.taken_back}
    without_scores: set[tuple[tuple, str]] = set()
    without_responses: set[tuple[tuple, str | None]] = set()
    latest: dict[str, dict[str, Kept]] = {}
    for one in sorted(said, key=lambda k: (k.given_ns, k.received_ns, k.key), reverse=True):
        score, response = (by(one), one.trace_id), (by(one), one.response_id)
        if one.taken_back and score in scores:
            without_scores.add(score)
        elif one.taken_back:
            without_responses.add(response)
        elif score in without_scores or not without_responses.isdisjoint((response, (by(one), None))):
            continue
        elif one.value is not None:
            latest.setdefault(_target(one, config), {}).setdefault(one.source, one)
    return latest


def _outcome(about: Kept, voices: Sequence[tuple[str, float, float]], config: FeedbackConfig) -> Outcome:
    weight = sum(own for _, _, own in voices)
    enough = weight >= config.min_weight
    return Outcome(
        attempt_id=about.attempt_id or "",
        response_id=about.response_id if config.scores == "call" else None,
        name=about.name,
        value=sum(value * own for _, value, own in voices) / weight if enough else None,
        sources=tuple(sorted(voices)),
    )


def _states(
    kept: Iterable[Kept], config: FeedbackConfig, trusted: set[str], now_ns: int
) -> Iterable[tuple[tuple[str, str], State]]:
    """Yield every entry's state in order of arrival: what came before a cap was reached stays counted."""
    waits_ns = quarantine_ns(config)
    of_source: Counter[tuple[str, int]] = Counter()
    of_all: Counter[int] = Counter()
    for one in sorted(kept, key=lambda k: (k.received_ns, k.key)):
        hour = hour_began_ns(one.received_ns)
        free = one.source in trusted or one.withdraws
        if not free:
            of_source[one.source, hour] += 1
            # Feedback over its source's own cap does not use up the cap that all sources share.
            within = of_source[one.source, hour] <= config.source_per_hour
            of_all[hour] += within
            if not within or of_all[hour] > config.all_per_hour:
                yield one.key, State.CAPPED
                continue
        if one.attempt_id is None:
            yield one.key, State.UNMATCHED
        elif not free and now_ns - one.received_ns < waits_ns:
            yield one.key, State.QUARANTINED
        else:
            yield one.key, State.COUNTED


def feedback_report(review: Review, config: FeedbackConfig) -> dict[str, Any]:
    """Return a review in plain numbers: counts by state, and the sources, those that weigh least first."""
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
