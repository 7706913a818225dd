"""What the agents' own processes report that they could not capture, by program and reason."""

import json
from collections import Counter
from collections.abc import Iterable
from typing import TypedDict

from lightning_instrumentation import semconv

from lightning_trainer.types import Span

_IN_WORDS = {
    "request-over-limit": "requests over max_body_bytes, not read",
    "response-over-limit": "answers over max_body_bytes, not read to their end",
    "not-captured:request-body-unread": "requests whose body is a generator, a file or a form",
    "not-captured:bedrock-invoke": "calls of Bedrock's InvokeModel, whose format is each model's own",
    "not-captured:vertex-raw-predict": "calls of Vertex AI's rawPredict, whose format is each model's own",
    "not-captured:responses-compact": "conversations that were shortened by OpenAI (`responses.compact`)",
    "not-captured:gemini-interactions": "calls of Gemini's Interactions API",
    "not-captured:websocket": "connections to a model over a websocket, whose calls are not read",
    "not-captured:claude-code": "starts of Claude Code past the gateway, as for an agent that no policy claims",
    "agent-not-entered": "agents that were named above no function and around no block",
    "state-not-entered": "states that were named around no block",
    "not-captured:http-client": "calls of the openai client through an HTTP client other than httpx",
    "not-captured:content-encoding": "answers in an encoding that the process cannot decode",
    "not-hidden:content-encoding": "answers that were handed on with the token ids in them",
    "logprobs-mismatch": "responses with another number of logprobs than of ids, kept without them",
    "not-routed": "calls of claimed agents that the gateway cannot answer",
    "route-fallback": "calls of claimed agents that went elsewhere, because the daemon was away",
    "redaction": "texts that could not be redacted, left out",
    "spool-full": "spans dropped, because the spool was full",
    "after-shutdown": "spans that ended after lt.shutdown(), lost",
    "span-rejected": "spans that the daemon will not take, put aside",
    "spans-refused": "deliveries of which the daemon did not store all spans",
    "spool-not-writable": "spans that waited in memory, because the disk could not be written",
}
"""Explanations by prefix of the client's reason; other reasons are shown as they are."""


class ProgramLosses(TypedDict):
    """What one program could not capture."""

    program: str
    """Its ``service.name``."""
    processes: int
    """Number of processes that lost something."""
    reasons: dict[str, int]


def unread_in_words(instrumentation: str, count: int) -> str:
    """Return a sentence about model-call spans whose format no dialect reads, with what to do."""
    return (
        f"{count:,} span{'s' * (count != 1)} of model calls by {instrumentation} in a form of its own, which is not "
        "read: let our client record those calls (lightning-trainer run), or have them written as OpenTelemetry has it"
    )


def count_losses(spans: Iterable[Span]) -> list[ProgramLosses]:
    """Sum up the processes' reports. Each reports totals, repeatedly and in any order, so the maximum counts."""
    of_process: dict[tuple[str, str], Counter[str]] = {}
    for span in spans:
        said = _counts(span)
        key = str(span.resource.get("service.name", "unknown")), str(span.attributes.get(semconv.PROCESS_ID))
        of_process[key] = of_process.get(key, Counter()) | said
    programs: dict[str, list[Counter[str]]] = {}
    for (program, _), counts in of_process.items():
        if counts:
            programs.setdefault(program, []).append(counts)
    return [
        ProgramLosses(program=program, processes=len(counts), reasons=dict(sum(counts, Counter()).most_common()))
        for program, counts in sorted(programs.items())
    ]


def _counts(span: Span) -> Counter[str]:
    """Return a report's counts; empty if unreadable, because anyone who can send spans can send such a span."""
    text = span.attributes.get(semconv.LOSSES)
    try:
        said = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return Counter()
    pairs = said.items() if isinstance(said, dict) else ()
    return Counter({str(reason)[:100]: n for reason, n in pairs if isinstance(n, int) and 0 < n < 2**53})


def in_words(reason: str) -> str:
    """Return a reason with its explanation."""
    return next((f"{words} ({reason})" for known, words in _IN_WORDS.items() if reason.startswith(known)), reason)
