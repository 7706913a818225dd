"""Rewards that arrive when their attempt was assigned to a step before: stored, reported, never trained.

Until then nothing of an attempt is worked out ahead, so a reward that arrives after the rollout has ended, but before
its attempt was assigned, simply counts. Afterwards the batch is on disk and a repeat of it must give the same weights.
"""

from collections.abc import Sequence

from lightning_instrumentation import semconv

from lightning_trainer.store.store import Store
from lightning_trainer.types import AttributeValue, Span

_NAMED = 3


async def late_rewards(store: Store, spans: Sequence[Span], *, policy: str | None = None) -> tuple[int, str | None]:
    """Return how many attempts got a reward too late, and one sentence on them.

    Args:
        spans: those that were stored just now, each for the first time.
        policy: whose steps count; those of any when absent.
    """
    attempt_ids: set[str] = set()
    rollout_ids: set[str] = set()
    response_ids: set[str] = set()
    for span in spans:
        for event in span.events:
            if event.name != semconv.EVALUATION_EVENT or semconv.FEEDBACK_SOURCE in event.attributes:
                continue  # feedback is a reward when it has been settled
            # One name is enough; the event is more exact than the span that carries it.
            for name, found in (
                (semconv.ATTEMPT_ID, attempt_ids),
                (semconv.RESPONSE_ID, response_ids),
                (semconv.ROLLOUT_ID, rollout_ids),
            ):
                if text := _text(event.attributes.get(name)) or _text(span.attributes.get(name)):
                    found.add(text)
                    break
    if not (attempt_ids or rollout_ids or response_ids):
        return 0, None
    consumed = await store.consumed(
        attempt_ids=attempt_ids, rollout_ids=rollout_ids, response_ids=response_ids, policy=policy
    )
    if not consumed:
        return 0, None
    named = ", ".join(f"{attempt_id} (step {step})" for attempt_id, step in list(consumed.items())[:_NAMED])
    more = f" and {len(consumed) - _NAMED} more" if len(consumed) > _NAMED else ""
    return len(consumed), (
        f"rewards came after their attempts had been assigned to a step: {named}{more}; they are stored and not "
        "trained. If that happens often, raise reward_wait_s"
    )


def _text(value: AttributeValue | None) -> str | None:
    return value if isinstance(value, str) and value else None
