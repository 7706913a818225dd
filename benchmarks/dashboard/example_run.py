"""A run of a support agent in a store, as its client, the gateway and the training loop would have written it.

No engine and no trainer: spans are made, and batches, ledgers and reports follow from them by the core's own functions.
Numbers are drawn from a fixed seed; what is said in the pictures of the documentation comes from here.
"""

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.telemetry.messages import as_json
from lightning_instrumentation.telemetry.packing import pack_logprobs, pack_token_ids

from lightning_trainer.config.file import load_config
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.batches import build_batch
from lightning_trainer.types import (
    PolicyVersion,
    Span,
    SpanEvent,
    SpanStatus,
    StepReport,
    TrainingBatch,
    VersionState,
)
from lightning_trainer.versions.held_out import refresh_verdicts

CONFIG = """
[daemon]
port = 0
{token}
[[policy]]
name = "support"
agents = ["support", "planner_*"]
model = "{model}"
group_size = 4
groups_per_step = 4
"""
_SECOND_NS = 10**9
_ITEMS = (
    "the blue kettle",
    "two desk lamps",
    "a walnut shelf",
    "the garden hose",
    "six wine glasses",
    "a wool blanket",
)
_STATES = ("is on its way and arrives on Friday", "was delivered yesterday", "waits for customs", "left our warehouse")
_POLICY = "support"
Encode = Callable[[str], Sequence[int]]


def letters(text: str) -> list[int]:
    """Encode a text without a tokenizer: an id for each word."""
    return [int.from_bytes(hashlib.blake2b(word.encode(), digest_size=2).digest(), "little") for word in text.split()]


@dataclass
class Writer:
    """Spans of one attempt, in the order in which they happened."""

    attempt: str
    task: str
    group: str
    mode: str
    starts_ns: int
    encode: Encode
    version: int = 0
    spans: list[Span] = field(default_factory=list)
    at_ns: int = 0

    def __post_init__(self) -> None:
        self.at_ns = self.starts_ns

    def span(self, name: str, title: str, parent: str | None, took_s: float, **attributes: Any) -> Span:
        begins = self.at_ns
        about = {semconv.ROLLOUT_ID: f"r-{self.attempt}", semconv.ATTEMPT_ID: self.attempt}
        one = Span(
            trace_id=hashlib.blake2b(self.attempt.encode(), digest_size=16).hexdigest(),
            span_id=self.id(name),
            parent_span_id=None if parent is None else self.id(parent),
            name=title,
            start_ns=begins,
            end_ns=begins + int(took_s * _SECOND_NS),
            attributes={**about, **attributes},
            scope=semconv.CLIENT_SCOPE,
        )
        self.spans.append(one)
        return one

    def id(self, name: str) -> str:
        return hashlib.blake2b(f"{self.attempt} {name}".encode(), digest_size=8).hexdigest()

    def call(
        self, number: int, prompt: Sequence[int], asked: list, said: list, answer: str, logprobs: Sequence[float]
    ) -> tuple[int, ...]:
        """Add a call as client and gateway record it; return its prompt and answer as ids."""
        ids = list(self.encode(answer))
        common = {
            semconv.AGENT_NAME: "support",
            semconv.OPERATION: semconv.CHAT,
            semconv.RESPONSE_ID: f"chatcmpl-{self.attempt}-{number}",
            semconv.FINISH_REASONS: ("stop",),
            semconv.REQUEST_MODEL: _POLICY,
            semconv.INPUT_TOKENS: len(prompt),
            semconv.OUTPUT_TOKENS: len(ids),
            semconv.INPUT_MESSAGES: as_json(asked),
            semconv.OUTPUT_MESSAGES: as_json(said),
            semconv.STREAM_COMPLETE: True,
        }
        took = 0.4 + 0.02 * len(ids)
        self.span(f"client-{number}", "chat support", "agent", took, **common)
        record = self.span(
            f"gateway-{number}",
            "gateway chat",
            f"client-{number}",
            took - 0.02,
            **common,
            **{
                semconv.POLICY: _POLICY,
                semconv.POLICY_VERSION: self.version,
                semconv.CHOICES: 1,
                semconv.PROMPT_TOKEN_IDS: pack_token_ids(tuple(prompt)),
                semconv.response_token_ids(0): pack_token_ids(tuple(ids)),
                semconv.response_logprobs(0): pack_logprobs(list(logprobs)[: len(ids)]),
            },
        )
        self.spans[-1] = replace(record, scope=semconv.GATEWAY_SCOPE, status=SpanStatus.OK)
        self.at_ns += int((took + 0.05) * _SECOND_NS)
        return (*prompt, *ids)

    def end(self, reward: float | None, why: str | None = None, error: str | None = None) -> list[Span]:
        about = {
            semconv.ROLLOUT_ROOT: True,
            semconv.TASK_ID: self.task,
            semconv.GROUP_ID: self.group,
            semconv.ROLLOUT_MODE: self.mode,
        }
        ended, self.at_ns = self.at_ns, self.starts_ns
        root = self.span("root", f"rollout {self.task}", None, (ended - self.starts_ns) / _SECOND_NS + 0.1, **about)
        if error is not None:
            root = replace(root, status=SpanStatus.ERROR, status_message=error)
        given = {semconv.EVALUATION_NAME: "reward"}
        given |= {} if reward is None else {semconv.EVALUATION_SCORE: reward}
        given |= {} if why is None else {semconv.EVALUATION_EXPLANATION: why}
        if reward is not None:
            root = replace(root, events=(SpanEvent(semconv.EVALUATION_EVENT, root.end_ns - 1, given),))
        self.spans[-1] = root
        return self.spans


def attempt(
    name: str,
    order: int,
    *,
    group: str,
    version: int,
    skill: float,
    at_ns: int,
    draw: random.Random,
    encode: Encode,
    mode: str = "train",
    score: bool = True,
    task: str | None = None,
) -> list[Span]:
    """Return an attempt at one order: the agent asks where it is, a tool says it, the agent answers."""
    item, state = _ITEMS[order % len(_ITEMS)], _STATES[order % len(_STATES)]
    writer = Writer(name, task or f"order-{4700 + order}", group, mode, at_ns, encode, version)
    question = f"Where is order {4700 + order}? I bought {item}."
    system = "You are the support agent of a small shop. Look an order up before you answer, and name its number."
    asked = [_message("system", system), _message("user", question)]
    right = draw.random() < skill
    call = f'<tool_call>{{"name": "look_up", "arguments": {{"order": "{4700 + order}"}}}}</tool_call>'
    found = f'{{"order": {4700 + order}, "item": "{item}", "state": "{state}"}}'
    answer = f"Order {4700 + order}, {item}, {state}." if right else f"Your parcel {state}. Please ask again tomorrow."
    told = {
        "role": "assistant",
        "parts": [
            {"type": "tool_call", "id": f"call-{name}", "name": "look_up", "arguments": {"order": str(4700 + order)}}
        ],
    }
    writer.span("agent", "invoke_agent support", "root", 0.2, **_of(semconv.INVOKE_AGENT))
    prompt = list(encode(f"system {system} user {question} assistant"))
    so_far = writer.call(0, prompt, asked, [{**told, "finish_reason": "tool_calls"}], call, _surprises(draw, 60))
    writer.span(
        "tool",
        "execute_tool look_up",
        "agent",
        0.12,
        **{
            **_of(semconv.EXECUTE_TOOL),
            semconv.TOOL_NAME: "look_up",
            semconv.TOOL_CALL_ID: f"call-{name}",
            semconv.TOOL_CALL_ARGUMENTS: as_json({"order": str(4700 + order)}),
            semconv.TOOL_CALL_RESULT: found,
        },
    )
    writer.at_ns += int(0.14 * _SECOND_NS)
    response = {"role": "tool", "parts": [{"type": "tool_call_response", "id": f"call-{name}", "response": found}]}
    said = [{**_message("assistant", answer), "finish_reason": "stop"}]
    prompt = [*so_far, *encode(f"tool {found} assistant")]
    writer.call(1, prompt, [*asked, told, response], said, answer, _surprises(draw, 60))
    index = next(i for i, span in enumerate(writer.spans) if span.span_id == writer.id("agent"))
    writer.spans[index] = replace(writer.spans[index], end_ns=writer.at_ns)
    if not score:
        return writer.end(None)
    why = "names the order and says where it is" if right else "does not name the order"
    return writer.end(1.0 if right else 0.0, why)


def hostile(at_ns: int) -> list[Span]:
    """Return an attempt whose every text tries to be something else."""
    said = (
        "<script>document.title='owned'</script><img src=x onerror=alert(1)> "
        "\u202etxt.exe \u2066ok\u2069 \x00\x07 \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ]]> --> {{ 7*7 }}"
    )
    writer = Writer("a<b>\"'&", "task <i>", "group</pre>", "train", at_ns, letters)
    writer.span("agent", "invoke_agent <script>alert(2)</script>", "root", 1.0, **_of(semconv.INVOKE_AGENT))
    long = "x" * 1_000_000
    writer.call(0, letters("one two"), [_message("user", said)], [_message("assistant", said)], "a b c", [-0.5] * 3)
    writer.call(
        1, letters("one two three"), [_message("user", long)], [_message("assistant", "\x00")], "d e", [-0.5] * 2
    )
    return writer.end(0.5, f"because {said}")


def _of(operation: str) -> dict[str, Any]:
    return {semconv.OPERATION: operation, semconv.AGENT_NAME: "support"}


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _surprises(draw: random.Random, count: int) -> list[float]:
    return [-min(6.0, draw.expovariate(2.2)) for _ in range(count)]


def config_text(model: str = "random:nowhere", *, token: str | None = "none") -> str:
    return CONFIG.format(model=model, token="" if token is None else f'token = "{token}"')


async def fill(
    folder: Path,
    *,
    steps: int = 8,
    groups: int = 4,
    now_ns: int,
    encode: Encode = letters,
    model: str = "random:nowhere",
) -> Path:
    """Write ``lightning.toml`` and a store with so many steps into a folder, and return the configuration's path."""
    path = folder / "lightning.toml"
    if not path.exists():
        path.write_text(config_text(model))
    config = load_config(path)
    policy = config.policy[0]
    draw = random.Random(7)
    step_ns = 90 * _SECOND_NS
    begins = now_ns - (steps + 2) * step_ns
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite", config.store) as store:
        await store.begin_policy(_POLICY)
        await store.put_version(_version(0, begins))
        head = 0
        for step in range(1, steps + 1):
            at = begins + step * step_ns
            names: list[str] = []
            spans: list[Span] = []
            for group in range(groups):
                for member in range(policy.group_size):
                    name = f"{step:03d}-{group}-{member}"
                    names.append(name)
                    order = (7 * step + group) % 90
                    spans += attempt(
                        name,
                        order,
                        group=f"step-{step}/order-{4700 + order}",
                        version=head,
                        skill=_skill(head),
                        at_ns=at + (group * 4 + member) * 2 * _SECOND_NS,
                        draw=draw,
                        encode=encode,
                    )
            await store.append(spans)
            await _take_step(store, policy, step, names, head, draw)
            await store.put_version(_version(step, at + step_ns // 2))
            head = step
            if step % 2 == 0:
                await store.append(_held_out(step, at, draw, encode))
            if step == max(2, 2 * steps // 3):
                await store.put_rollback(_POLICY, step - 2, at_ns=at + 60 * _SECOND_NS)
                head = step - 2
        await store.append(_waiting(now_ns, head, draw, encode))
        await refresh_verdicts(store, policy)
    return path


def _held_out(step: int, at: int, draw: random.Random, encode: Encode) -> list[Span]:
    spans: list[Span] = []
    for order in range(12):
        spans += attempt(
            f"held-{step:03d}-{order}",
            100 + order,
            group=f"held-out/{order}",
            version=step,
            skill=_skill(step),
            at_ns=at + 60 * _SECOND_NS + order * _SECOND_NS,
            draw=draw,
            encode=encode,
            mode="evaluate",
        )
    return spans


def _waiting(now_ns: int, head: int, draw: random.Random, encode: Encode) -> list[Span]:
    """Attempts that no step has taken: some of a group, one without a reward, one that failed, one that still runs."""
    options: dict[str, Any] = {"version": head, "skill": 0.6, "draw": draw, "encode": encode}
    at = now_ns - 60 * _SECOND_NS
    spans: list[Span] = []
    for member in range(3):
        spans += attempt(
            f"new-{member}", 50, group="next", at_ns=at + member * _SECOND_NS, score=member != 2, **options
        )
    failed = Writer("failed", "order-4760", "other", "train", at, encode, head)
    failed.span("agent", "invoke_agent support", "root", 0.1, **_of(semconv.INVOKE_AGENT))
    spans += failed.end(None, error="TimeoutError: the shop's database did not answer within 30 s")
    running = Writer("running", "order-4761", "another", "train", now_ns - 9 * _SECOND_NS, encode, head)
    running.span("agent", "invoke_agent support", None, 1.0, **_of(semconv.INVOKE_AGENT))
    spans += running.spans
    unclaimed = Writer("unclaimed", "summary-1", "summary-1", "train", at, encode, head)
    text = {
        semconv.OPERATION: semconv.CHAT,
        semconv.AGENT_NAME: "summarizer",
        semconv.RESPONSE_ID: "resp-1",
        semconv.INPUT_MESSAGES: as_json([_message("user", "Summarize the week.")]),
        semconv.OUTPUT_MESSAGES: as_json([_message("assistant", "Forty orders, two complaints.")]),
        semconv.INPUT_TOKENS: 900,
        semconv.OUTPUT_TOKENS: 40,
    }
    unclaimed.span("call", "chat gpt-5-mini", "root", 1.4, **text)
    return spans + unclaimed.end(1.0) + hostile(at)


def _skill(version: int) -> float:
    return 0.25 + 0.65 * (1 - math.exp(-version / 8))


def _version(number: int, at_ns: int) -> PolicyVersion:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return PolicyVersion(
        _POLICY,
        number,
        number,
        VersionState.LIVE,
        at_ns,
        digest,
        3.1e-6 * (1 + number % 5),
        4e-7,
        0.41 + number % 3 / 9,
    )


async def _take_step(
    store: SqliteStore, policy: Any, step: int, names: Sequence[str], head: int, draw: random.Random
) -> None:
    reading = read_spans(await store.spans_of_attempts(names))
    attempts = await store.attempts(attempt_ids=names)
    build = build_batch(reading.calls, attempts, reading.evaluations, policy, step)
    rewards = [one.value for one in reading.evaluations if one.value is not None]
    kept = [group for group in build.groups if not group.refused_reason]
    metrics = {
        "reward/mean": sum(rewards) / len(rewards),
        "groups/total": float(len(build.groups)),
        "groups/kept": float(len(kept)),
        "attempts/total": float(len(names)),
        "attempts/scored": float(len(rewards)),
        **(await store.measures()),
    }
    if build.batch is not None:
        metrics |= sampling_metrics(build.batch, tuple(range(head + 1)))
    await store.assign(
        build.batch,
        policy=_POLICY,
        step=step,
        attempt_ids=names,
        ledger=build.ledger,
        state=StepState.ASSIGNED if build.batch else StepState.SKIPPED,
        metrics=metrics,
    )
    if build.batch is not None:
        await store.finish_step(_POLICY, _report(build.batch, draw))


def _report(batch: TrainingBatch, draw: random.Random) -> StepReport:
    credits = [segment.credit or 0.0 for sample in batch.samples for segment in sample.segments]
    mean = sum(credits) / len(credits)
    advantages = {
        sample.sample_id: tuple(
            next((s.credit - mean for s in sample.segments if s.credit is not None and s.start <= at < s.end), 0.0)
            for at in range(len(sample.token_ids))
        )
        for sample in batch.samples
    }
    tokens = sum(sum(sample.loss_mask) for sample in batch.samples)
    length = sum(len(sample.token_ids) for sample in batch.samples)
    wobble = draw.uniform(0.8, 1.2)
    metrics = {
        "actor/ppo_kl": 0.0021 * wobble,
        "actor/pg_loss": -0.04 * wobble,
        "actor/pg_clipfrac": 0.013 * wobble,
        "grad_norm": 0.9 * wobble,
        "lr": 1e-5,
        "loss": -0.04 * wobble,
        "mismatch/abs_mean": 0.004 * wobble,
        "mismatch/abs_max": 0.11 * wobble,
    }
    seconds = {"rollout": 21.0 * wobble, "build": 0.6, "advantages": 0.1, "train": 8.5 * wobble}
    return StepReport(batch.step, metrics, advantages, tokens, int(0.45 * length), length, seconds)
