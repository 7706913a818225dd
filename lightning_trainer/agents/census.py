"""Counts the calls of every agent in a store, in bounded memory.

Traces are read one at a time and joined as for training. One short row is kept of each call; the records of one call
that are in different traces are joined in ``meeting``.
"""

import hashlib
import pickle
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_token_ids

from lightning_trainer.agents import meeting
from lightning_trainer.ingest.agreement import statement_of
from lightning_trainer.ingest.ancestry import (
    SpanKey,
    enclosing,
    key_of,
    outer_of,
    process_agent,
    resolve_identities,
    unique,
)
from lightning_trainer.ingest.calls import JoinedCall, fidelity_of, joined_calls, server_of, tokens_of
from lightning_trainer.ingest.dialects import langsmith, span_events
from lightning_trainer.ingest.dialects.dialect import ModelCall
from lightning_trainer.ingest.dialects.genai import stream_part
from lightning_trainer.ingest.dialects.lightning import is_gateway, is_ours
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.dialects.tokens import FOREIGN_NAMES, Tokens, carries_tokens, read_tokens
from lightning_trainer.ingest.joining import faithfulness
from lightning_trainer.token_ids import Ids, packed
from lightning_trainer.types import Fidelity, Span

_LONG = 2000
"""A longer text attribute is content, not an identity."""
_NEEDED = frozenset({semconv.OUTPUT_MESSAGES, "output.value", langsmith.OUTPUTS, "metadata"})
"""Long texts that response ids, tools, and names are read from."""
_MOST_TOOLS = 1000
_NO_TOKENS = Tokens((), (), ())


@dataclass(slots=True)
class AgentCensus:
    """Counts for one agent."""

    agent: str | None
    calls: int = 0
    """Responses of a model; one with several choices is one call."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    uncounted_calls: int = 0
    """Calls with neither ids nor the server's counts; no sum includes their tokens."""
    fidelity: dict[Fidelity, int] = field(default_factory=lambda: dict.fromkeys(Fidelity, 0))
    sources: set[str] = field(default_factory=set)
    """How the name was recognized."""
    tools: set[str] = field(default_factory=set)
    served_by: Counter[str] = field(default_factory=Counter)
    """How many of its calls each policy answered."""
    elsewhere: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Exact calls that did not go through the gateway: by the server that answered, and its name for the model."""
    interrupted: int = 0
    """Streams that ended before their last chunk."""
    cancelled: int = 0
    """Calls through the gateway that their caller gave up before anything was answered."""
    unrecorded: int = 0
    """Calls without ids that our client sent to the gateway, but that have no gateway record."""
    without_ids: int = 0
    """Calls to a trusted host that returned no token ids."""
    fell_back: int = 0
    """Calls without ids that fell back to their own host because the daemon was away."""
    failed_by_scope: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        """Return the number of requests that no model answered.

        If it is unknown which records of several instrumentations describe the same request, the largest count of one
        instrumentation is used: exact if all of them watch the same programs, else too low.
        """
        return max(self.failed_by_scope.values(), default=0)


def slim(span: Span) -> Span:
    """Remove what the census does not read: long texts, events without an answer, all token ids except their number."""
    kept = {
        name: value
        for name, value in span.attributes.items()
        if name in _NEEDED or not isinstance(value, str | bytes) or (isinstance(value, str) and len(value) <= _LONG)
    }
    tokens = read_tokens(span) if is_gateway(span) or carries_tokens(span) else _NO_TOKENS
    if tokens.prompt_ids or any(choice.response_ids for choice in tokens.choices):
        kept |= {
            semconv.INPUT_TOKENS: len(tokens.prompt_ids),
            semconv.OUTPUT_TOKENS: sum(len(choice.response_ids) for choice in tokens.choices),
            # A few ids instead of many: the call still counts as one with ids, and can be distinguished from others.
            semconv.PROMPT_TOKEN_IDS: _abridged(tokens.prompt_ids),
            **{name: () for name in FOREIGN_NAMES if name in kept},  # keeps the span in its dialect
            **{
                semconv.response_token_ids(c.index): (
                    pack_token_ids(c.response_ids[:1])
                    if span.attributes.get(semconv.STREAM_COMPLETE) is False
                    else _abridged(c.response_ids)
                )
                for c in tokens.choices
            },
        }
    events = tuple(event for event in span.events if event.name in span_events.ANSWERS)
    return replace(span, attributes=kept, events=events)


def _abridged(ids: Ids) -> bytes:
    """Return the first id, which a truncated answer also begins with, and a hash of all ids in place of the others."""
    first = pack_token_ids(ids[:1])
    return first and first + hashlib.blake2b(packed(ids), digest_size=16).digest()


def count_agents(traces: Iterable[list[Span]]) -> list[AgentCensus]:
    """Return the counts of every agent, by name; calls without a name come last."""
    counted: dict[str | None, AgentCensus] = {}
    with closing(sqlite3.connect("", isolation_level=None)) as rows:  # a temporary file of SQLite, removed when closed
        meeting.create(rows)
        rows.execute("BEGIN")
        for spans in traces:
            meeting.add(rows, _rows(spans, counted))
        meeting.join_across_traces(rows)
        for agent, scope, failed in meeting.failed(rows):
            _of(counted, agent).failed_by_scope[scope] += failed
        for calls in meeting.calls(rows):
            _add(calls, counted)
    return sorted(counted.values(), key=lambda one: (one.agent is None, one.agent or ""))


def _rows(spans: list[Span], counted: dict[str | None, AgentCensus]) -> Iterator[meeting.Kept]:
    """Yield the rows of a trace's calls; executed tools are counted at once."""
    known = unique(spans)
    identities = resolve_identities(known)
    foreign: list[SpanKey] = []
    failed: list[Span] = []
    for key, span in known.items():
        dialect = dialect_of(span)
        tool = dialect.tool(span)
        if tool is not None:
            _note_tools(_of(counted, identities[key].agent or process_agent(span).agent), [tool])
        if dialect.failed(span):
            failed.append(span)
    by_gateway: set[str | None] = set()
    for call in joined_calls(known, identities):
        yield _row(call)
        foreign += [key_of(record.span) for record in call.records if not is_ours(record.span)]
        by_gateway.update(record.span.parent_span_id for record in call.records if is_gateway(record.span))
    for span in failed:
        if is_ours(span) and span.span_id in by_gateway:
            continue  # the gateway's record of the request is counted
        agent = identities[key_of(span)].agent or process_agent(span).agent
        yield meeting.Failed(_name(key_of(span)), agent, span.scope, _outer(span))
        if not is_ours(span):
            foreign.append(key_of(span))
    if foreign:
        for inner, record in enclosing(known, foreign).items():
            yield meeting.Inside(_name(inner), _name(record))
    for span in known.values():
        if not is_ours(span) and (part := stream_part(span)) is not None:
            yield meeting.Part(part.place, part.at_ns, part.is_log, _name(part.span))


def _row(call: JoinedCall) -> meeting.Row:
    best, identity = call.best, call.identity
    tokens = tokens_of(best)
    exact = any(fidelity_of(tokens, choice) is Fidelity.EXACT for choice in tokens.choices)
    policy = best.span.attributes.get(semconv.POLICY)
    usages = [dialect_of(record.span).usage(record.span) for record in call.records]
    called = sorted({name for record in call.records for name in _tools_called(record)})
    name = _name(key_of(best.span))
    server, model = server_of(best.span) if exact and policy is None else (None, None)
    interrupted = best.complete is False
    return meeting.Row(
        call=meeting.by_name(name) if call.response_id is None else f"id{call.response_id}",
        rank=repr(faithfulness(best)[:4]),
        span=name,
        agent=identity.agent,
        source=call.agent_source,
        prompt_tokens=_first(usage.input_tokens for usage in usages),
        sampled_tokens=_first(usage.output_tokens for usage in usages),
        fidelity=Fidelity.EXACT if exact else Fidelity.TEXT_ONLY,
        interrupted=interrupted,
        cancelled=interrupted and not exact and is_gateway(best.span),
        route=next((route for record in call.records if (route := _route(record.span))), None),
        policy=policy if isinstance(policy, str) else None,
        server=server,
        model=model,
        tools="\n".join(called) or None,
        start_ns=best.span.start_ns,
        outer=next((outer for record in call.records if (outer := _outer(record.span))), None),
        statements=pickle.dumps([tuple(statement_of(record, call.identities)) for record in call.records]),
    )


def _name(key: SpanKey) -> str:
    return f"{key[0]}{key[1]}"


def _route(span: Span) -> str | None:
    if semconv.ROUTE_POLICY not in span.attributes:
        return "trusted" if span.attributes.get(semconv.NO_TOKEN_IDS) is True else None
    return "home" if span.attributes.get(semconv.ROUTE_FELL_BACK) is True else "gateway"


def _outer(span: Span) -> str | None:
    key = outer_of(span)
    return None if key is None else _name(key)


def _tools_called(record: ModelCall) -> Iterable[str]:
    return dialect_of(record.span).conversation(record.span).tools_called


def _first(values: Iterable[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)


_BY_THE_GATEWAY = "gateway"
"""Only the gateway recorded the call: its base URL or its baggage named the agent."""


def _add(calls: list[meeting.Row], counted: dict[str | None, AgentCensus]) -> None:
    best, *others = calls
    agent, source, prompt, sampled = best.agent, best.source, best.prompt_tokens, best.sampled_tokens
    for other in others:
        agent = agent or other.agent
        source = source or (other.source if other.agent == agent else None)
        prompt = other.prompt_tokens if prompt is None else prompt
        sampled = other.sampled_tokens if sampled is None else sampled
    one = _of(counted, agent)
    one.calls += 1
    one.prompt_tokens += prompt or 0
    one.sampled_tokens += sampled or 0
    one.fidelity[Fidelity(best.fidelity)] += 1
    if best.cancelled:
        one.cancelled += 1
    else:
        one.uncounted_calls += prompt is None or sampled is None
        one.interrupted += best.interrupted
        if best.fidelity == Fidelity.TEXT_ONLY:
            route = next((row.route for row in calls if row.route), None)
            one.unrecorded += route == "gateway"
            one.fell_back += route == "home"
            one.without_ids += route == "trusted"
    one.sources.update([source or _BY_THE_GATEWAY] if agent else [])
    one.served_by.update([best.policy] if best.policy else [])
    if best.server is not None:
        one.elsewhere[best.server, best.model or ""] += 1
    for row in calls:
        _note_tools(one, row.tools.split("\n") if row.tools else [])


def _note_tools(one: AgentCensus, names: Iterable[str]) -> None:
    if len(one.tools) < _MOST_TOOLS:  # names that a model makes up must not fill the memory
        one.tools.update(names)


def _of(counted: dict[str | None, AgentCensus], agent: str | None) -> AgentCensus:
    return counted.setdefault(agent, AgentCensus(agent))
