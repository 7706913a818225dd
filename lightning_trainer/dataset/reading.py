"""Recorded spans, read into the parts of datasets: calls, attempts, rewards and, if requested, words."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lightning_instrumentation import semconv

from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.ancestry import outer_of, unique
from lightning_trainer.ingest.dialects import agentops
from lightning_trainer.ingest.reading import Reading, read_spans
from lightning_trainer.retokenize.grading import Scorer, retokenized
from lightning_trainer.retokenize.texts import Words, words_of
from lightning_trainer.retokenize.tokenizer import PolicyTokenizer
from lightning_trainer.samples.feedback.entries import Entry, edits_of
from lightning_trainer.samples.transitions.causes import span_parents
from lightning_trainer.store.tables.arrivals import tally
from lightning_trainer.store.tables.attempts import attempt_of
from lightning_trainer.types import Attempt, AttemptState, Call, Evaluation, Fidelity, Span


@dataclass(frozen=True, slots=True)
class Recording:
    """Everything that was read from some spans."""

    calls: tuple[Call, ...]
    attempts: tuple[Attempt, ...]
    """Attempts, including those of which only a part was read: they count as running, except Agent Lightning's, whose
    spans never mark an end."""
    evaluations: tuple[Evaluation, ...]
    span_parents: Mapping[str, str]
    words: Mapping[str, Words] = field(default_factory=dict)
    """By call id; empty unless requested."""
    problems: tuple[str, ...] = ()
    edits: tuple[Entry, ...] = ()
    """Edited answers, and entries that take feedback back, oldest first; empty unless words were requested."""
    outer_traces: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The attempts made in traces of the program's own (such as Langfuse's), by trace id: edits may name them by it."""
    embedded: Mapping[str, bytes] = field(default_factory=dict)
    """Images and other media that the spans of a file contained, by hash."""


def read_recording(spans: Sequence[Span], *, with_words: bool = False) -> Recording:
    """Read spans of any number of traces, in any order, repeated or not.

    Args:
        with_words: also read the words, which doubles the time.
    """
    reading = read_spans(spans)
    attempts = {attempt.attempt_id: attempt for attempt in reading.attempts}
    for span in spans:
        running = attempt_of(span)
        if running is not None:
            attempts.setdefault(running.attempt_id, running)
    attempts |= _exported_attempts(spans, reading, attempts)
    return Recording(
        calls=reading.calls,
        attempts=tuple(attempts[name] for name in sorted(attempts)),
        evaluations=reading.evaluations,
        span_parents=span_parents(spans),
        words=words_of(spans) if with_words else {},
        problems=(*reading.problems, *_missing_spans(spans, attempts)),
        edits=edits_of(spans) if with_words else (),
        outer_traces=_outer_traces(spans) if with_words else {},
    )


def _outer_traces(spans: Sequence[Span]) -> dict[str, frozenset[str]]:
    """Return, by trace id, the attempts whose spans name that trace as the one around them, as the store does."""
    found: dict[str, set[str]] = defaultdict(set)
    for span in spans:
        outer, attempt_id = outer_of(span), span.attributes.get(semconv.ATTEMPT_ID)
        if outer is not None and isinstance(attempt_id, str):
            found[outer[0]].add(attempt_id)
    return {trace_id: frozenset(attempts) for trace_id, attempts in found.items()}


def _exported_attempts(spans: Sequence[Span], reading: Reading, known: Mapping[str, Attempt]) -> dict[str, Attempt]:
    """Return the attempts of calls and rewards that only Agent Lightning's exporter names.

    Nothing marks their end or says how they ended: what was recorded of them counts as complete.
    """
    named = {one.attempt_id for one in (*reading.calls, *reading.evaluations)} - known.keys()
    parts: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans if named else ():
        rollout_id, attempt_id = agentops.place_of(span)
        if rollout_id is not None and attempt_id is not None and attempt_id in named:
            parts[attempt_id, rollout_id].append(span)
    return {
        attempt_id: Attempt(
            attempt_id,
            rollout_id,
            task_id=rollout_id,
            group_id=rollout_id,
            state=AttemptState.SUCCEEDED,
            started_ns=min(span.start_ns for span in found),
            ended_ns=max(span.end_ns for span in found),
        )
        for (attempt_id, rollout_id), found in sorted(parts.items(), reverse=True)
    }


def _missing_spans(spans: Sequence[Span], attempts: Mapping[str, Attempt]) -> list[str]:
    missing: dict[str, int] = defaultdict(int)
    for (attempt_id, _), (arrived, started) in tally(unique(spans).values()).items():
        if arrived < started and attempt_id in attempts and attempts[attempt_id].ended_ns is not None:
            missing[attempt_id] += started - arrived
    if not missing:
        return []
    worst = max(missing, key=lambda name: (missing[name], name))
    return [
        f"{sum(missing.values())} spans of {len(missing)} attempts are not here (such as {missing[worst]} of {worst}): "
        "what is built of these attempts may lack calls or rewards"
    ]


def retokenize(
    recording: Recording, policy: PolicyConfig, tokenizer: PolicyTokenizer, scorer: Scorer | None = None
) -> Recording:
    """Return the recording with ids for those text-only calls of the policy's agents whose ids can be verified.

    Args:
        recording: read with its words.
        scorer: an engine that serves the policy's model; None if there is none.
    """
    calls: list[Call] = []
    refused: dict[str, list[str]] = {}
    verified = 0
    for call in recording.calls:
        if call.fidelity is Fidelity.TEXT_ONLY and policy.claims(call.agent):
            call, reason = retokenized(call, recording.words.get(call.call_id), tokenizer, policy.name, scorer)
            if reason is None:
                verified += 1
            else:
                refused.setdefault(reason, []).append(call.call_id)
        calls.append(call)
    said = [f"calls tokenized again from their words and verified: {verified}"] if verified else []
    said += [
        f"calls that stay text_only: {len(call_ids)} (such as {min(call_ids)}): {reason}"
        for reason, call_ids in sorted(refused.items())
    ]
    return replace(recording, calls=tuple(calls), problems=(*recording.problems, *said))
