"""A store with a long history, written fast: rows in bulk, and bodies of the store's own codecs with their ids put in.

An attempt is ten spans: a root, six calls as the client records them, three records of the gateway. Nine tenths of the
attempts were taken by steps, one in twenty is an evaluation, some wait for a step, and some never ended.
"""

import asyncio
import sqlite3
import time
import zlib
from array import array
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from lightning_instrumentation import semconv

from benchmarks.common.rows import Row
from lightning_trainer.otlp.span_codec import encode_resource, encode_span
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.batch_codec import encode_batch, encode_metrics, encode_report
from lightning_trainer.types import Sample, Segment, Span, SpanEvent, StepReport, TrainingBatch

POLICY = "support"
_OF_AN_ATTEMPT = 10
_WAITING = 500
_RUNNING = 100
_AT_ONCE = 2_000
_TRACE, _SPAN = "ab" * 16, "cd" * 8
_ATTEMPT, _RESPONSE = "attempt-000000000000", "response-000000000000"


@dataclass(frozen=True, slots=True)
class History:
    state_dir: Path
    spans: int
    steps: int
    bytes: int
    rows: list[Row] = field(default_factory=list)


def make(state_dir: Path, *, spans: int, steps: int) -> History:
    """Fill a new store, and say how large it is."""
    began = time.monotonic()
    state_dir.mkdir(mode=0o700)
    path = state_dir / "lightning.sqlite"
    asyncio.run(_empty(path))
    attempts = spans // _OF_AN_ATTEMPT
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=OFF")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("PRAGMA cache_size=-1000000")
        connection.execute("BEGIN")
        connection.execute("INSERT INTO resources VALUES (1, ?)", (encode_resource({"service.name": "agent"}),))
        _put_steps(connection, steps)
        for first in range(0, attempts, _AT_ONCE):
            _put_attempts(connection, range(first, min(first + _AT_ONCE, attempts)), attempts, steps)
        _put_totals(connection, attempts, steps)
        connection.execute("COMMIT")
        connection.execute("PRAGMA journal_mode=WAL")
    # A run's file has one line a step: the last one says how far the run has come.
    (state_dir / "metrics").mkdir()
    (state_dir / "metrics" / f"{POLICY}.jsonl").write_text(f'{{"policy": "{POLICY}", "step": {steps}}}\n')
    size = path.stat().st_size
    seconds = time.monotonic() - began
    what = Row("store", "size on disk", size / 2**20, "MiB", note=f"filled in {seconds:.0f} s")
    return History(state_dir, attempts * _OF_AN_ATTEMPT, steps, size, [what])


async def _empty(path: Path) -> None:
    async with SqliteStore(path) as store:
        await store.begin_policy(POLICY)
        await store.enroll(POLICY)


def _mode(number: int) -> str:
    return "evaluate" if number % 20 == 19 else "train"


def _step_of(number: int, attempts: int, steps: int) -> int | None:
    """Return the step that has taken an attempt; None for evaluations and for the last attempts, which wait or run."""
    if number >= attempts - _left(attempts) or _mode(number) == "evaluate":
        return None
    return 1 + number * steps // (attempts - _left(attempts))


def _left(attempts: int) -> int:
    return min(_WAITING + _RUNNING, attempts // 5)


def _running(number: int, attempts: int) -> bool:
    return number >= attempts - min(_RUNNING, attempts // 20)


class _Body:
    """The bytes of one kind of span, except for what differs from attempt to attempt."""

    def __init__(self, span: Span) -> None:
        self._body = encode_span(span)
        self.span = span
        assert bytes.fromhex(_TRACE) in self._body

    def of(self, trace: str, span_id: str, attempt: str, response: str) -> bytes:
        body = self._body.replace(bytes.fromhex(_TRACE), bytes.fromhex(trace), 1)
        body = body.replace(bytes.fromhex(_SPAN), bytes.fromhex(span_id), 1)
        return body.replace(_ATTEMPT.encode(), attempt.encode()).replace(_RESPONSE.encode(), response.encode())


def _bodies(mode: str) -> tuple[_Body, _Body, _Body]:
    own = {semconv.ATTEMPT_ID: _ATTEMPT, semconv.ROLLOUT_ID: _ATTEMPT, semconv.ROLLOUT_MODE: mode}
    call = {
        **own,
        semconv.AGENT_NAME: "support",
        semconv.OPERATION: semconv.CHAT,
        semconv.RESPONSE_ID: _RESPONSE,
        semconv.INPUT_MESSAGES: '[{"role": "user", "parts": [{"type": "text", "content": "Where is my parcel?"}]}]',
    }
    record = {
        **call,
        semconv.POLICY: POLICY,
        semconv.POLICY_VERSION: 1,
        semconv.CHOICES: 1,
        semconv.PROMPT_TOKEN_IDS: array("i", range(60)).tobytes(),
        semconv.response_token_ids(0): array("i", range(40)).tobytes(),
        semconv.response_logprobs(0): array("f", [-0.5] * 40).tobytes(),
    }
    scored = {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: 0.5}
    root = Span(
        _TRACE,
        _SPAN,
        None,
        "rollout",
        1,
        2,
        {**own, semconv.ROLLOUT_ROOT: True},
        events=(SpanEvent(semconv.EVALUATION_EVENT, 2, scored),),
    )
    return (
        _Body(root),
        _Body(Span(_TRACE, _SPAN, None, "chat m", 1, 2, call, scope=semconv.CLIENT_SCOPE)),
        _Body(Span(_TRACE, _SPAN, None, "chat m", 1, 2, record, scope=semconv.GATEWAY_SCOPE)),
    )


_BODIES = {mode: _bodies(mode) for mode in ("train", "evaluate")}


def _put_attempts(connection: sqlite3.Connection, numbers: range, attempts: int, steps: int) -> None:
    now_ns = time.time_ns()
    connection.executemany(
        """INSERT INTO spans(seq, trace_id, span_id, name, start_ns, end_ns, rollout_id, attempt_id, operation,
           response_id, scope, resource_id, body, checksum) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1, ?, ?)""",
        (row for number in numbers for row in _span_rows(number, attempts)),
    )
    told, taking_part, taken, waiting, judged = [], [], [], [], []
    for number in numbers:
        name, group, mode = _name(number), f"run/step-{number // 32}/t{number // 8}", _mode(number)
        running = _running(number, attempts)
        state, ended = ("running", None) if running else ("succeeded", now_ns)
        started = now_ns - (attempts - number) * 10**9
        told.append((name, name, f"t{number // 8}", group, mode, state, started, ended, None, f"{number:016x}"))
        taking_part.append((POLICY, name))
        if mode == "evaluate":
            judged.append((name,))
        elif (step := _step_of(number, attempts, steps)) is not None:
            taken.append((POLICY, name, step, number))
        elif not running:
            waiting.append((POLICY, name, group, f"t{number // 8}", now_ns))
    connection.executemany("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", told)
    connection.executemany("INSERT INTO participations VALUES (?, ?)", taking_part)
    connection.executemany("INSERT INTO assignments VALUES (?, ?, ?, ?)", taken)
    connection.executemany(
        "INSERT INTO waiting(policy, attempt_id, group_key, task_key, since_ns) VALUES (?, ?, ?, ?, ?)", waiting
    )
    connection.executemany("INSERT INTO evaluations(attempt_id) VALUES (?)", judged)
    mark = (numbers[-1] + 1) * _OF_AN_ATTEMPT
    age_ns = (attempts - numbers[-1]) * 10**9
    connection.execute("INSERT OR REPLACE INTO received VALUES (?, ?)", (mark, now_ns - age_ns))


def _name(number: int) -> str:
    return f"attempt-{number:012d}"


def _span_rows(number: int, attempts: int) -> Iterator[tuple]:
    name, trace, mode = _name(number), f"{number + 1:032x}", _mode(number)
    root, call, record = _BODIES[mode]
    for index in range(_OF_AN_ATTEMPT):
        kind = root if index == 0 else record if index > 6 else call
        if index == 0 and _running(number, attempts):
            kind = call
        seq = number * _OF_AN_ATTEMPT + index + 1
        # The gateway's record has the same response id as the client's call.
        response = f"response-{number * 8 + (index if index < 7 else index - 6):012d}"
        body = kind.of(trace, f"{seq:016x}", name, response)
        span = kind.span
        operation = span.attributes.get(semconv.OPERATION)
        yield (
            *(seq, trace, f"{seq:016x}", span.name, 1, 2, name, name, operation),
            *(response if operation else None, span.scope, body, zlib.crc32(body)),
        )


def _put_steps(connection: sqlite3.Connection, steps: int) -> None:
    ids = tuple(range(2000))
    segment = Segment(1, 2000, "c/0", 0, 1.0, "a")
    mask, logprobs = (0, *([1] * 1999)), (0.0, *(-n / 997 for n in range(1, 2000)))
    sample = Sample("s", POLICY, "support", "g", "a", ids, mask, logprobs, (segment,))
    batch = encode_batch(TrainingBatch(POLICY, 1, (sample,)))
    values = {f"metric/{n}": n / 7 for n in range(25)}
    report = encode_report(
        StepReport(1, values, {"s": tuple(n / 997 for n in range(2000))}, 1999, 2000, 2000, {"x": 1.0})
    )
    metrics = encode_metrics({"reward/mean": 0.5, "groups/total": 8.0})
    numbers = range(1, steps + 1)
    connection.executemany(
        "INSERT INTO steps VALUES (?, ?, 'trained', ?, ?, ?)",
        ((POLICY, step, batch, report, metrics) for step in numbers),
    )
    connection.executemany(
        "INSERT INTO ledger VALUES (?, ?, 'support', ?, ?, ?, ?, 100, 5)",
        ((POLICY, s, POLICY, s - 1, outcome, why) for s in numbers for outcome, why in _OUTCOMES),
    )
    now_ns = time.time_ns()
    connection.executemany(
        "INSERT INTO versions VALUES (?, ?, ?, ?, ?, NULL, NULL, NULL, NULL, NULL)",
        ((POLICY, s, s, "live" if s == steps else "retired", now_ns - (steps - s) * 10**9) for s in (0, *numbers)),
    )


_OUTCOMES = (("trained", "sampled"), ("masked", "zero_variance_group"), ("dropped", "no_reward"))


def _put_totals(connection: sqlite3.Connection, attempts: int, steps: int) -> None:
    running = sum(_running(number, attempts) for number in range(attempts))
    connection.executemany(
        "INSERT OR REPLACE INTO totals VALUES (?, ?)",
        [
            ("spans", attempts * _OF_AN_ATTEMPT),
            ("calls", attempts * 3),
            ("rollouts", attempts),
            ("attempts/succeeded", attempts - running),
            ("attempts/running", running),
            ("steps/trained", steps),
        ],
    )
