"""Counts the calls of every agent in a store, in bounded memory.

Traces are read one at a time and joined as for training; what is kept of each call is one short row in a temporary
SQLite file. There the records of one response that came in different traces (a second instrumentation's, a gateway
record without trace context) meet, are told from other calls with the same response id as they are for training
(``ingest/agreement.py``), and the most faithful of them is counted.
"""

import hashlib
import pickle
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import groupby

from lightning_instrumentation import semconv
from lightning_instrumentation.packing import pack_token_ids

from lightning_trainer.ingest.agreement import Statement, parted, statement_of
from lightning_trainer.ingest.ancestry import resolve_identities, unique
from lightning_trainer.ingest.calls import JoinedCall, fidelity_of, joined_calls, server_of, tokens_of
from lightning_trainer.ingest.dialects.lightning import is_gateway
from lightning_trainer.ingest.dialects.record import ModelCall
from lightning_trainer.ingest.dialects.registry import dialect_of
from lightning_trainer.ingest.dialects.tokens import FOREIGN_NAMES, Tokens, carries_tokens, read_tokens
from lightning_trainer.ingest.joining import faithfulness
from lightning_trainer.token_ids import Ids, packed
from lightning_trainer.types import Fidelity, Span

_LONG = 2000
"""A text attribute beyond so many characters is what somebody said, not who or what a span is."""
_NEEDED = frozenset({semconv.OUTPUT_MESSAGES, "output.value", "metadata"})
"""Long texts that response ids, tools and names are read from."""
_MOST_TOOLS = 1000
_NO_TOKENS = Tokens((), (), ())


@dataclass(slots=True)
class AgentCensus:
    """What was seen of one agent."""

    agent: str | None
    calls: int = 0
    """Responses of a model; one with several choices is one call."""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    uncounted_calls: int = 0
    """Calls of which neither ids nor the server's counts are known; their tokens are in no sum."""
    fidelity: dict[Fidelity, int] = field(default_factory=lambda: dict.fromkeys(Fidelity, 0))
    sources: set[str] = field(default_factory=set)
    """How the name was recognised."""
    tools: set[str] = field(default_factory=set)
    served_by: set[str] = field(default_factory=set)
    """Policies that answered its calls."""
    elsewhere: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Exact calls that did not go through the gateway: by the server that answered, and the model as it calls it."""
    interrupted: int = 0
    """Streams that ended before their last chunk."""
    failed_by_scope: Counter[str] = field(default_factory=Counter)

    @property
    def failed(self) -> int:
        """Requests that no model answered.

        Each instrumentation of a program tells of each of them and no id says which are the same, so the one that saw
        most counts: exact where all watch the same programs, else too few.
        """
        return max(self.failed_by_scope.values(), default=0)


def slim(span: Span) -> Span:
    """Take off what the census does not look at: events, long texts, and of token ids everything but their number."""
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
            # A few ids of many: the call stays one whose ids are known, and can be told from others.
            semconv.PROMPT_TOKEN_IDS: _abridged(tokens.prompt_ids),
            **{name: () for name in FOREIGN_NAMES if name in kept},  # so that it stays in its dialect
            **{
                semconv.response_token_ids(c.index): (
                    pack_token_ids(c.response_ids[:1])
                    if span.attributes.get(semconv.STREAM_COMPLETE) is False
                    else _abridged(c.response_ids)
                )
                for c in tokens.choices
            },
        }
    return replace(span, attributes=kept, events=())


def _abridged(ids: Ids) -> bytes:
    """The first id, with which an answer that was cut short begins too, and a hash of all in place of the others."""
    first = pack_token_ids(ids[:1])
    return first and first + hashlib.blake2b(packed(ids), digest_size=16).digest()


def count_agents(traces: Iterable[list[Span]]) -> list[AgentCensus]:
    """Return what was seen of every agent, by name; calls without a name come last."""
    counted: dict[str | None, AgentCensus] = {}
    with closing(sqlite3.connect("", isolation_level=None)) as rows:  # SQLite's temporary file, gone when it is closed
        rows.execute(_CREATE)
        rows.execute("BEGIN")
        for spans in traces:
            rows.executemany(_INSERT, _rows(spans, counted))
        for calls in _responses(rows):
            _add(calls, counted)
    return sorted(counted.values(), key=lambda one: (one.agent is None, one.agent or ""))


_COLUMNS = (
    "response, rank, agent, source, prompt_tokens, sampled_tokens, fidelity, interrupted, policy, tools, single, "
    "statements, server, model"
)
_STATEMENTS = _COLUMNS.split(", ").index("statements")
_CREATE = f"CREATE TABLE calls({_COLUMNS})"
_INSERT = f"INSERT INTO calls VALUES ({', '.join('?' * len(_COLUMNS.split(',')))})"


def _rows(spans: list[Span], counted: dict[str | None, AgentCensus]) -> Iterator[tuple]:
    """Yield a row for each call of a trace; tools that were run and requests that failed are counted at once."""
    known = unique(spans)
    identities = resolve_identities(known)
    for key, span in known.items():
        dialect = dialect_of(span)
        tool = dialect.tool(span)
        if tool is not None:
            _note_tools(_of(counted, identities[key].agent), [tool])
        if dialect.failed(span):
            _of(counted, identities[key].agent).failed_by_scope[span.scope] += 1
    for call in joined_calls(known, identities):
        yield _row(call)


def _row(call: JoinedCall) -> tuple:
    best, identity = call.best, call.identity
    tokens = tokens_of(best)
    exact = any(fidelity_of(tokens, choice) is Fidelity.EXACT for choice in tokens.choices)
    policy = best.span.attributes.get(semconv.POLICY)
    usages = [dialect_of(record.span).usage(record.span) for record in call.records]
    called = sorted({name for record in call.records for name in _tools_called(record)})
    response_id = call.response_id
    return (
        response_id,
        repr(faithfulness(best)[:4]),
        identity.agent,
        call.agent_source,
        _first(usage.input_tokens for usage in usages),
        _first(usage.output_tokens for usage in usages),
        Fidelity.EXACT if exact else Fidelity.TEXT_ONLY,
        best.complete is False,
        policy if isinstance(policy, str) else None,
        "\n".join(called) or None,
        f"{best.span.trace_id}{best.span.span_id}",
        # What a call without an id states is asked by nobody.
        response_id and pickle.dumps([tuple(statement_of(record, call.identities)) for record in call.records]),
        *(server_of(best.span) if exact and policy is None else (None, None)),
    )


def _tools_called(record: ModelCall) -> Iterable[str]:
    return dialect_of(record.span).conversation(record.span).tools_called


def _first(values: Iterable[int | None]) -> int | None:
    return next((value for value in values if value is not None), None)


def _responses(rows: sqlite3.Connection) -> Iterator[list[tuple]]:
    """Yield the rows of each call, the most faithful first; without a response id a row is a call of its own."""
    ordered = rows.execute(
        f"SELECT {_COLUMNS}, coalesce('id' || response, single) AS call FROM calls ORDER BY call, rank, single"
    )
    for _, group in groupby(ordered, key=lambda row: row[-1]):
        found = list(group)
        if len(found) == 1:
            yield found
            continue
        statements = [[Statement(*stated) for stated in pickle.loads(row[_STATEMENTS])] for row in found]
        for places in parted(statements):
            yield [found[place] for place in places]


_BY_THE_GATEWAY = "gateway"
"""Nobody but the gateway tells of the call: its base URL or its baggage named the agent."""


def _add(calls: list[tuple], counted: dict[str | None, AgentCensus]) -> None:
    _, _, agent, source, prompt, sampled, fidelity, interrupted, policy, *_ = calls[0]
    for other in calls[1:]:
        agent = agent or other[2]
        source = source or (other[3] if other[2] == agent else None)
        prompt = other[4] if prompt is None else prompt
        sampled = other[5] if sampled is None else sampled
    one = _of(counted, agent)
    one.calls += 1
    one.prompt_tokens += prompt or 0
    one.sampled_tokens += sampled or 0
    one.uncounted_calls += prompt is None or sampled is None
    one.fidelity[Fidelity(fidelity)] += 1
    one.interrupted += interrupted
    one.sources.update([source or _BY_THE_GATEWAY] if agent else [])
    one.served_by.update([policy] if policy else [])
    if calls[0][-3] is not None:
        one.elsewhere[calls[0][-3], calls[0][-2] or ""] += 1
    for row in calls:
        _note_tools(one, row[9].split("\n") if row[9] else [])


def _note_tools(one: AgentCensus, names: Iterable[str]) -> None:
    if len(one.tools) < _MOST_TOOLS:  # names that a model makes up must not fill the memory
        one.tools.update(names)


def _of(counted: dict[str | None, AgentCensus], agent: str | None) -> AgentCensus:
    return counted.setdefault(agent, AgentCensus(agent))
