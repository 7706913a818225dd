"""Attempts' scores by name, the newest of each: the data for comparing judges."""

from collections.abc import Sequence
from dataclasses import dataclass

from lightning_instrumentation import semconv
from lightning_instrumentation.reward import LARGEST_REWARD

from lightning_trainer.otlp.span_codec import decode_span
from lightning_trainer.samples.feedback.entries import is_feedback
from lightning_trainer.store.connection import Connection
from lightning_trainer.types import AttributeValue

LOOKED_AT = 50_000
"""How many of the newest evaluations of a name are read, however many other spans there are."""
NEWEST = """
    SELECT coalesce(spans.attempt_id, (SELECT attempts.attempt_id FROM attempts
           WHERE attempts.rollout_id = spans.rollout_id ORDER BY started_ns DESC, attempt_id DESC LIMIT 1)), body, scope
    FROM spans WHERE seq IN (
        SELECT seq FROM spans
        WHERE name = ? AND name >= 'evaluate ' AND name < 'evaluate!' ORDER BY seq DESC LIMIT ?)
    ORDER BY seq"""
"""The range of names tells the database that its index of evaluations has them all: ``!`` comes next after a space."""
BOUNDS = "SELECT " + ", ".join(
    f"(SELECT {end}(seq) FROM spans WHERE name = ? AND name >= 'evaluate ' AND name < 'evaluate!')"
    for end in ("max", "min")
)


@dataclass(frozen=True, slots=True)
class Score:
    """One evaluation of an attempt as a whole."""

    attempt_id: str
    name: str
    value: float
    time_ns: int
    place: int | None
    """For a judge: the position among the attempts judged together."""
    question: str
    """For a judge: equal for verdicts on the same question."""
    judge: str | None = None
    """For a judge: the fingerprint of its settings at that time."""
    remembered: bool = False
    """For a judge: whether it is an earlier answer that was used again."""


def select(connection: Connection, names: Sequence[str]) -> list[Score]:
    """Return the scores of these names, name by name, oldest first; only scores of whole attempts, not of single agents
    or calls."""
    found = []
    for attempt_id, body, scope in (row for name in dict.fromkeys(names) for row in _newest(connection, name)):
        if attempt_id is None:
            continue
        span = decode_span(body, scope=scope, resource={})
        for event in span.events:
            told = {**span.attributes, **event.attributes}  # either may say what is scored, and by whom
            value, name = number_of(told.get(semconv.EVALUATION_SCORE)), told.get(semconv.EVALUATION_NAME)
            of_a_part = semconv.EVALUATION_AGENT in told or semconv.RESPONSE_ID in told or is_feedback(told)
            if of_a_part or not isinstance(name, str) or value is None:
                continue
            place = span.attributes.get(semconv.JUDGE_PLACE)
            place = place if isinstance(place, int) else None
            judge = span.attributes.get(semconv.JUDGE_FINGERPRINT)
            judge = judge if isinstance(judge, str) else None
            again = span.attributes.get(semconv.JUDGE_REMEMBERED) is True
            found.append(Score(attempt_id, name, value, event.time_ns, place, span.trace_id, judge, again))
    return found


def number_of(score: AttributeValue | None) -> float | None:
    """Return an evaluation's score as a number; None if it counts as missing, as NaN and a boolean do."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return None
    return float(score) if abs(score) <= LARGEST_REWARD else None


def bounds(connection: Connection, name: str) -> tuple[int | None, int | None]:
    """Return the numbers of the newest and the oldest evaluation of a name, which change when one comes or expires."""
    return connection.execute(BOUNDS, (f"evaluate {name}",) * 2).fetchone()


def _newest(connection: Connection, name: str) -> list[tuple[str | None, bytes, str]]:
    return connection.execute(NEWEST, (f"evaluate {name}", LOOKED_AT)).fetchall()
