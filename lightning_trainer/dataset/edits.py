"""Edited answers: what someone wanted an agent to say, as a demonstration and as the better answer of a pair.

An edit is text, so it has no token ids. The pair that it makes has none either, even if those of the answer that it
replaces are known.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.examples import Example
from lightning_trainer.samples.feedback.entries import Entry
from lightning_trainer.types import Call, Fidelity

EDITED = "edit"
"""Takes the place of the name of the model that answered."""


def by_call(edits: Sequence[Entry], calls: Sequence[Call], policy: PolicyConfig) -> Mapping[str, str]:
    """Return the newest edit of each call's answer, by call id.

    An edit that does not name a response replaces the last answer that the policy's agents gave in the attempt.
    """
    own = [call for call in sorted(calls, key=attrgetter("start_ns", "call_id")) if policy.claims(call.agent)]
    last: dict[tuple[str, str], Call] = {}
    for call in own:
        for kind, name in (
            ("response", call.response_id),
            ("attempt", call.attempt_id),
            ("trace", call.trace_id),
            ("rollout", call.rollout_id),
        ):
            if name is not None:
                last[kind, name] = call
    found: dict[str, str] = {}
    for entry in edits:
        subject = entry.subject
        named = (
            ("response", subject.response_id),
            ("attempt", subject.attempt_id),
            ("trace", subject.trace_id),
            ("rollout", subject.rollout_id),
        )
        kind, name = next(((kind, name) for kind, name in named if name is not None), ("", ""))
        if (call := last.get((kind, name))) is not None and entry.correction is not None:
            found[call.call_id] = entry.correction
    return found


def edited(example: Example, correction: str) -> Example | None:
    """Return the example with the corrected answer; None if the words of its prompt are not known."""
    if example.prompt is None:
        return None
    return replace(
        in_words(example),
        call_id=f"{example.call_id}#{EDITED}",
        model=EDITED,
        reward=None,
        answer={"role": "assistant", "content": correction},
    )


def in_words(example: Example) -> Example:
    """Return the example without token ids."""
    return replace(example, fidelity=Fidelity.TEXT_ONLY, prompt_ids=(), response_ids=())
