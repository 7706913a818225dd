"""Attempts of a calculator agent as its client and the gateway record them, and a daemon's step over them.

Question "2 * 3 = ?" is 10 11 12; the model writes "<calc>2*3</calc>" as 20 21 22; the tool's "6" is rendered as 30 31;
then the model answers "6." as 40 41.
"""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import as_json
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.cli.daemon.ui import dashboard_app
from lightning_trainer.config.file import load_config
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.sampling import Support
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import Span, SpanEvent, SpanStatus, StepReport, TrainingBatch

CONFIG = """
[[policy]]
name = "math"
agents = ["solver", "checker*"]
model = "random:nowhere"
group_size = 4
groups_per_step = 1
max_sample_tokens = 64
"""
START_NS = 1_790_000_000_000_000_000
SECOND_NS = 1_000_000_000
QUESTION, TOOL_CALL, TOOL_RESULT, ANSWER = (10, 11, 12), (20, 21, 22), (30, 31), (40, 41)


@dataclass(frozen=True)
class Turn:
    """One model call: what was shown and sampled, in tokens and in words."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    messages: tuple[tuple[str, str], ...]
    answer: str
    agent: str | None = "solver"
    version: int = 3
    complete: bool = True
    support: Support | None = None
    """What the engine says that its tokens were drawn from."""

    @property
    def asked(self) -> str:
        return as_json([_message(role, text) for role, text in self.messages])

    @property
    def answered(self) -> str:
        reason = "stop" if self.complete else None
        return as_json([{**_message("assistant", self.answer), "finish_reason": reason}])


def _message(role: str, text: str) -> dict:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


ASK = Turn(QUESTION, TOOL_CALL, (("user", "2 * 3 = ?"),), "<calc>2*3</calc>")
FINISH = Turn(
    QUESTION + TOOL_CALL + TOOL_RESULT,
    ANSWER,
    (("user", "2 * 3 = ?"), ("assistant", "<calc>2*3</calc>"), ("tool", "6")),
    "6.",
)


@dataclass
class AttemptSpans:
    """One attempt's spans: root, then for each turn the agent's span, the client's and the gateway's record."""

    name: str
    turns: Sequence[Turn] = (ASK, FINISH)
    reward: float | None = 1.0
    reward_name: str = "reward"
    explanation: str | None = None
    judge: str | None = None
    """Whose verdict the reward is; None: it was given by no judge."""
    task: str = "2*3"
    group: str = "g"
    mode: str = "train"
    begins_s: float = 0.0
    agent_attribute: bool = True
    """Whether every span carries the agent's name, as ours do; else only the agent's own span."""
    ids: dict = field(init=False)

    def __post_init__(self) -> None:
        self.ids = {semconv.ROLLOUT_ID: f"r-{self.name}", semconv.ATTEMPT_ID: self.name}

    @property
    def spans(self) -> list[Span]:
        return [self.root(), *(span for number in range(len(self.turns)) for span in self.turn(number))]

    def root(self) -> Span:
        about = {
            semconv.ROLLOUT_ROOT: True,
            semconv.TASK_ID: self.task,
            semconv.GROUP_ID: self.group,
            semconv.ROLLOUT_MODE: self.mode,
        }
        about |= {} if self.judge is None else {semconv.JUDGE_NAME: self.judge}
        span = self._span("root", None, f"rollout {self.task}", 0.0, 10.0, about)
        if self.reward is None and self.explanation is None:
            return span
        given = {semconv.EVALUATION_NAME: self.reward_name}
        given |= {} if self.reward is None else {semconv.EVALUATION_SCORE: self.reward}
        given |= {} if self.explanation is None else {semconv.EVALUATION_EXPLANATION: self.explanation}
        return replace(span, events=(SpanEvent(semconv.EVALUATION_EVENT, span.end_ns - 1, given),))

    def turn(self, number: int) -> list[Span]:
        turn, begins = self.turns[number], 1.0 + 2 * number
        who = {semconv.AGENT_NAME: turn.agent} if turn.agent else {}
        below = who if self.agent_attribute else {}
        response = {
            semconv.OPERATION: semconv.CHAT,
            semconv.RESPONSE_ID: f"chatcmpl-{self.name}-{number}",
            semconv.FINISH_REASONS: ("stop" if turn.complete else "",),
            semconv.INPUT_MESSAGES: turn.asked,
            semconv.OUTPUT_MESSAGES: turn.answered,
            semconv.STREAM_COMPLETE: turn.complete,
        }
        tokens = {
            semconv.POLICY: "math",
            semconv.POLICY_VERSION: turn.version,
            semconv.CHOICES: 1,
            semconv.PROMPT_TOKEN_IDS: pack_token_ids(turn.prompt),
            semconv.response_token_ids(0): pack_token_ids(turn.response),
            semconv.response_logprobs(0): pack_logprobs([-0.5] * len(turn.response)),
        }
        if turn.support is not None:
            tokens[semconv.response_support(0)] = turn.support.encode()
        agent, client = f"agent-{number}", f"client-{number}"
        invoked = {semconv.OPERATION: semconv.INVOKE_AGENT, **who}
        record = self._span(
            f"gateway-{number}", client, "gateway chat", begins + 0.2, 1.2, {**below, **response, **tokens}
        )
        return [
            self._span(agent, "root", f"invoke_agent {turn.agent}", begins, 1.6, invoked),
            self._span(client, agent, "chat math", begins + 0.1, 1.4, {**below, **response}),
            replace(
                record,
                scope=semconv.GATEWAY_SCOPE,
                status=SpanStatus.OK if turn.complete else SpanStatus.ERROR,
                status_message="" if turn.complete else "the caller went away",
            ),
        ]

    def span_id(self, name: str) -> str:
        return hashlib.blake2b(f"{self.name} {name}".encode(), digest_size=8).hexdigest()

    def _span(self, name: str, parent: str | None, title: str, at_s: float, took_s: float, attributes: dict) -> Span:
        start_ns = START_NS + int((self.begins_s + at_s) * SECOND_NS)
        return Span(
            trace_id=hashlib.blake2b(self.name.encode(), digest_size=16).hexdigest(),
            span_id=self.span_id(name),
            parent_span_id=None if parent is None else self.span_id(parent),
            name=title,
            start_ns=start_ns,
            end_ns=start_ns + int(took_s * SECOND_NS),
            attributes={**self.ids, **attributes},
            scope=semconv.CLIENT_SCOPE,
        )


@pytest.fixture
def attempt() -> type[AttemptSpans]:
    """``attempt(name, turns=, reward=, ...).spans``: everything that is recorded of rollout ``r-{name}``."""
    return AttemptSpans


@pytest.fixture
def ask() -> Turn:
    """The first call: the model asks for the calculator."""
    return ASK


@pytest.fixture
def finish() -> Turn:
    """The second call: the model has the tool's result and answers."""
    return FINISH


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lightning.toml").write_text(CONFIG)
    return tmp_path


@pytest.fixture
async def store(folder: Path):
    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as opened:
        for policy in load_config(folder / "lightning.toml").policy:
            await opened.begin_policy(policy.name)
        yield opened


@pytest.fixture
def take_step(folder: Path, store: SqliteStore) -> Callable[..., Awaitable[TrainingBatch | None]]:
    """``take_step(names)``: what the daemon does with these attempts; advantages are credits less their mean.

    Further options are what only the daemon knows, as ``build_batch`` takes it.
    """

    async def step(names: Sequence[str], number: int = 1, **known: Any) -> TrainingBatch | None:
        policy = load_config(folder / "lightning.toml").named_policy("math")
        reading = read_spans(await store.spans_of_attempts(names))
        attempts = await store.attempts(attempt_ids=names)
        build = build_batch(reading.calls, attempts, reading.evaluations, policy, number, **known)
        await store.assign(
            build.batch,
            policy="math",
            step=number,
            attempt_ids=names,
            ledger=build.ledger,
            state=StepState.ASSIGNED if build.batch else StepState.SKIPPED,
            metrics={},
        )
        if build.batch is not None:
            await store.finish_step("math", _report(build.batch))
        return build.batch

    return step


def _report(batch: TrainingBatch) -> StepReport:
    credits = [segment.credit or 0.0 for sample in batch.samples for segment in sample.segments]
    mean = sum(credits) / len(credits)
    advantages = {
        sample.sample_id: tuple(
            next((s.credit - mean for s in sample.segments if s.credit is not None and s.start <= at < s.end), 0.0)
            for at in range(len(sample.token_ids))
        )
        for sample in batch.samples
    }
    return StepReport(batch.step, {}, advantages, len(credits), len(credits), len(credits), {})


@pytest.fixture
def explain(folder: Path) -> Callable[..., list[str]]:
    """``explain("r-a1")``: the lines that the command prints."""

    def run(*arguments: str, expect: int = 0, columns: int = 80) -> list[str]:
        command = ["explain", *arguments, "--config", str(folder / "lightning.toml")]
        done = CliRunner().invoke(app, command, env={"COLUMNS": str(columns)}, catch_exceptions=False)
        assert done.exit_code == expect, done.output
        return done.output.splitlines()

    return run


@pytest.fixture
def page(folder: Path) -> Callable[[str], Awaitable[str]]:
    """``await page("/rollout?id=r-a1")``: a page of the dashboard over the same store."""

    async def get(path: str) -> str:
        transport = httpx.ASGITransport(dashboard_app(load_config(folder / "lightning.toml"), None))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
            return unescape((await client.get(path)).text)

    return get
