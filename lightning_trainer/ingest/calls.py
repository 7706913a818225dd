"""Turns joined records into calls: one for each choice of each response, graded by the fidelity of its record.

The gateway's record is the authority on tokens and version, the client's span on identity; either alone makes a call. A
call without token ids gets the grade ``text_only``. The text is not kept here: code that needs it (to retokenize it,
say) asks the dialect of the call's span for the conversation.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from lightning_instrumentation import semconv

from lightning_trainer.ingest.ancestry import Identity, SpanKey, key_of, process_agent
from lightning_trainer.ingest.dialects import agentops, lightning
from lightning_trainer.ingest.dialects.dialect import ModelCall
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.dialects.tokens import Choice, Tokens, carries_tokens, read_tokens
from lightning_trainer.ingest.dialects.values import number
from lightning_trainer.ingest.joining import join
from lightning_trainer.ingest.media import media_of
from lightning_trainer.ingest.sampling import asked_of, drawn_from, experts_of
from lightning_trainer.types import AttributeValue, Call, Fidelity, Media, Span


class JoinedCall(NamedTuple):
    """A call with all of its records."""

    records: tuple[ModelCall, ...]
    """The most faithful one first: tokens, version, and times come from it."""
    identities: Mapping[SpanKey, Identity]

    @property
    def identity(self) -> Identity:
        """Return agent and attempt, each from the first record that has it; stops when both are known."""
        identity = self.identities[key_of(self.records[0].span)]
        for record in self.records[1:]:
            if identity.complete:
                break
            identity = identity.else_from(self.identities[key_of(record.span)])
        return self._else_of_process(identity)

    @property
    def agent_source(self) -> str | None:
        """Return how the agent was recognized, from the first record that says."""
        identity = self.identities[key_of(self.best.span)]
        for record in self.records[1:]:
            identity = identity.else_from(self.identities[key_of(record.span)])
        return self._else_of_process(identity).agent_source

    def _else_of_process(self, identity: Identity) -> Identity:
        for record in self.records:
            if identity.agent is not None:
                break
            identity = identity.else_from(process_agent(record.span))
        return identity

    @property
    def best(self) -> ModelCall:
        """Return the most faithful record."""
        return self.records[0]

    @property
    def response_id(self) -> str | None:
        """Return the best record's response id, or else the first that another record has."""
        return self.best.response_id or next(
            (record.response_id for record in self.records if record.response_id), None
        )


def joined_calls(spans: Mapping[SpanKey, Span], identities: Mapping[SpanKey, Identity]) -> Iterator[JoinedCall]:
    """Yield every call in any dialect, once; lazily, so that its spans are still in the CPU cache."""
    records = [record for span in spans.values() if (record := dialect_of(span).model_call(span)) is not None]
    for group in join(records, spans, identities):
        yield JoinedCall(group, identities)


def read_calls(joined: Iterable[JoinedCall], problems: list[str]) -> tuple[Call, ...]:
    """Return the calls by start time; contradictions are added to ``problems``, one sentence each."""
    calls: list[Call] = []
    for call in joined:
        _report_contradictions(call, problems)
        calls += _choices(call, problems)
    return tuple(sorted(_with_own_ids(calls), key=attrgetter("start_ns", "call_id")))


def _with_own_ids(calls: list[Call]) -> list[Call]:
    names = span_names([(call.trace_id, call.span_id) for call in calls])
    if not names:
        return calls
    return [
        call
        if (name := names.get((call.trace_id, call.span_id))) is None
        else replace(call, call_id=f"{name}/{call.call_id.rpartition('/')[2]}")
        for call in calls
    ]


def span_names(keys: Collection[SpanKey]) -> dict[SpanKey, str]:
    """Return names for spans whose span ids are ambiguous: span ids are unique only within a trace."""
    known = set(keys)
    counts = Counter(span_id for _, span_id in known)
    if len(counts) == len(known):
        return {}
    return {(trace_id, span_id): f"{span_id}.{trace_id}" for trace_id, span_id in known if counts[span_id] > 1}


def fidelity_of(tokens: Tokens, choice: Choice) -> Fidelity:
    """Return the grade of an engine's tokens: its ids are exact; without ids there is at most text."""
    return Fidelity.EXACT if tokens.prompt_ids or choice.response_ids else Fidelity.TEXT_ONLY


def _choices(joined: JoinedCall, problems: list[str]) -> list[Call]:
    best = joined.records[0]
    span, attributes = best.span, best.span.attributes
    agent, rollout_id, attempt_id, _ = joined.identity
    if rollout_id is None and attempt_id is None:
        rollout_id, attempt_id = agentops.place_of(span)
    tokens = tokens_of(best)
    if tokens.problems:
        problems += tokens.problems
    state = _state(joined.records)
    policy = attributes.get(semconv.POLICY)
    version = attributes.get(semconv.POLICY_VERSION)
    complete = best.complete is not False
    requested = dialect_of(span).request(span)
    asked = asked_of(requested)
    server, model = (None, None) if policy is not None else server_of(span)
    drawn = [drawn_from(span, c.index, c.response_ids, complete, asked, problems) for c in tokens.choices]
    # Positional, because passing twenty keyword arguments takes longer than setting the fields.
    return [
        Call(
            f"{span.span_id}/{choice.index}",
            span.trace_id,
            span.span_id,
            span.parent_span_id,
            best.response_id or joined.response_id,
            agent,
            rollout_id,
            attempt_id,
            policy if isinstance(policy, str) else None,
            version if isinstance(version, int) and not isinstance(version, bool) else None,
            tokens.prompt_ids,
            choice.response_ids,
            choice.logprobs,
            choice.finish_reason,
            complete,
            span.start_ns,
            span.end_ns,
            fidelity_of(tokens, choice),
            _temperature(requested),
            _media(joined.records),
            asked.shaping,
            support,
            unknown,
            state,
            server,
            model,
            experts_of(span, choice.index, len(tokens.prompt_ids) + len(choice.response_ids), problems),
        )
        for choice, (support, unknown) in zip(tokens.choices, drawn, strict=True)
    ]


def _state(records: Sequence[ModelCall]) -> str | None:
    for record in records:
        value = record.span.attributes.get(semconv.STATE)
        if isinstance(value, str | int | float) and str(value):
            return str(value)
    return None


def server_of(span: Span) -> tuple[str | None, str | None]:
    """Return where a call went (``host:port``) and which model answered, according to the client's record."""
    attributes = span.attributes
    host, port = attributes.get(semconv.SERVER_ADDRESS), attributes.get(semconv.SERVER_PORT)
    model = attributes.get(semconv.RESPONSE_MODEL) or attributes.get(semconv.REQUEST_MODEL)
    if not isinstance(host, str) or not host:
        return None, model if isinstance(model, str) else None
    named = f"[{host}]" if ":" in host else host
    return f"{named}:{port}" if isinstance(port, int) else named, model if isinstance(model, str) else None


def _media(records: Sequence[ModelCall]) -> tuple[Media, ...]:
    for record in records:
        if semconv.INPUT_MESSAGES in record.span.attributes and (found := media_of(record.span)):
            return found
    return ()


def _temperature(requested: Mapping[str, AttributeValue]) -> float:
    asked = number(requested, semconv.REQUEST_TEMPERATURE)
    return 1.0 if asked is None or asked < 0 else float(asked)


def tokens_of(record: ModelCall) -> Tokens:
    """Return the record's tokens; choices without tokens if it has only text."""
    if record.span.scope == semconv.GATEWAY_SCOPE or carries_tokens(record.span):
        tokens = read_tokens(record.span)
        if record.dialect == lightning.NAME:
            return tokens
        said = (*record.finish_reasons, *(None,) * len(tokens.choices))
        return tokens._replace(
            choices=tuple(c._replace(finish_reason=c.finish_reason or said[c.index]) for c in tokens.choices)
        )
    return Tokens((), tuple(Choice(i, (), None, reason) for i, reason in enumerate(record.finish_reasons)), ())


def _report_contradictions(joined: JoinedCall, problems: list[str]) -> None:
    best = joined.records[0].span
    if best.scope != semconv.GATEWAY_SCOPE:
        return
    for record in joined.records[1:]:
        if carries_tokens(record.span):
            _compare(record.span, best, problems)


def _compare(client: Span, gateway: Span, problems: list[str]) -> None:
    if not carries_tokens(gateway) or gateway.attributes.get(semconv.STREAM_COMPLETE) is False:
        return
    if client.attributes.get(semconv.STREAM_COMPLETE) is False:
        return  # the caller stopped reading: it has part of what the engine sampled
    seen, recorded = read_tokens(client), read_tokens(gateway)
    same_prompt = seen.prompt_ids == recorded.prompt_ids
    if not same_prompt or [c.response_ids for c in seen.choices] != [c.response_ids for c in recorded.choices]:
        problems.append(
            f"response {gateway.attributes.get(semconv.RESPONSE_ID)}: the client's token ids (span {client.span_id}) "
            f"are not the gateway's (span {gateway.span_id}); the gateway's count"
        )


def without_abandoned(calls: Iterable[Call], spans: Iterable[Span]) -> tuple[Call, ...]:
    """Return the calls, in order; those whose caller did not read the answer to its end are marked as incomplete.

    A committed record cannot be changed, so the gateway adds a child span (``lightning.call.abandoned``) when it turns
    out that the caller has abandoned the call.
    """
    given_up = {
        (span.trace_id, span.parent_span_id) for span in spans if span.attributes.get(semconv.CALL_ABANDONED) is True
    }
    if not given_up:
        return tuple(calls)
    return tuple(replace(call, complete=False) if (call.trace_id, call.span_id) in given_up else call for call in calls)
