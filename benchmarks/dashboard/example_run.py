"""A run of a support agent in a store, as its client, the gateway and the training loop would have written it.

There is no engine and no trainer: spans are made up, and batches, ledgers, and reports follow from them by the core's
own functions. Numbers are drawn from a fixed seed; the texts in the documentation's pictures come from here.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.messages import as_json

from benchmarks.dashboard.example_attempts import (
    POLICY,
    SECOND_NS,
    Encode,
    Writer,
    attempt,
    attributes_of,
    hostile,
    letters,
    message,
    photo,
)
from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.store import prompts
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.records import StepState
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables import canaries
from lightning_trainer.store.tables.canaries import CanaryRecord
from lightning_trainer.types import (
    PolicyVersion,
    Span,
    StepReport,
    TrainingBatch,
    VersionState,
)
from lightning_trainer.versions.held_out import refresh_verdicts
from lightning_trainer.versions.live_rollouts import LiveRollout, Usual, judge_candidate
from lightning_trainer.versions.sequential import Decision

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


def config_text(model: str = "random:nowhere", *, token: str | None = "none") -> str:
    return CONFIG.format(model=model, token="" if token is None else f'token = "{token}"')


_DEFAULT = "You work for a shop.\nAnswer the customer."
_BETTER = "You work for a shop.\nName the order & the day."


def _prompts(connection: Connection, at_ns: int) -> None:
    """Write versions of a named prompt: the program's own, one that a search found, and a person's."""
    prompts.register(connection, "support", prompts.root_of(_DEFAULT), _DEFAULT, at_ns)
    found = prompts.add(connection, "support", _BETTER, 0, "reflect", "It never names the order.", at_ns + SECOND_NS)
    prompts.add(connection, "support", f"{_DEFAULT}\nBe brief.", 0, "person", None, at_ns + 2 * SECOND_NS)
    for version, validation, held_out in ((0, 0.48, 0.5), (1, 0.71, 0.675)):
        scores = {"validation": {"mean": validation, "tasks": 24}, "held-out": {"mean": held_out, "tasks": 40}}
        prompts.put_scores(connection, "support", version, scores)
    prompts.use(connection, "support", found.version)


async def fill(
    folder: Path,
    *,
    steps: int = 8,
    groups: int = 4,
    now_ns: int,
    encode: Encode = letters,
    model: str = "random:nowhere",
    seed: int = 7,
) -> Path:
    """Write ``lightning.toml`` and a store with ``steps`` steps into a folder, and return the configuration's path."""
    path = folder / "lightning.toml"
    if not path.exists():
        path.write_text(config_text(model))
    config = load_config(path)
    policy = config.policy[0]
    draw = random.Random(seed)
    step_ns = 90 * SECOND_NS
    begins = now_ns - (steps + 2) * step_ns
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite", config.store) as store:
        await store.begin_policy(POLICY)
        await store.put_version(_version(0, begins))
        await store.write(lambda connection: _prompts(connection, begins))
        head = 0
        held_back = max(2, steps // 2)
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
                        at_ns=at + (group * 4 + member) * 2 * SECOND_NS,
                        draw=draw,
                        encode=encode,
                    )
            await store.append(spans)
            await _take_step(store, policy, step, names, head, draw)
            if step in (held_back, steps):
                canary = canary_of(policy, step, head, at + step_ns // 3, worse=step == held_back)
                await store.write(partial(canaries.put, record=canary))
            if step == held_back:
                refused = replace(_version(step, at + step_ns // 2), state=VersionState.REFUSED, reason=canary.reason)
                await store.put_version(refused)
            else:
                await store.put_version(_version(step, at + step_ns // 2))
                head = step
            if step % 2 == 0:
                await store.append(_held_out(step, at, draw, encode))
            if step == max(2, 2 * steps // 3):
                await store.put_rollback(POLICY, step - 2, at_ns=at + 60 * SECOND_NS)
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
            at_ns=at + 60 * SECOND_NS + order * SECOND_NS,
            draw=draw,
            encode=encode,
            mode="evaluate",
        )
    return spans


def _waiting(now_ns: int, head: int, draw: random.Random, encode: Encode) -> list[Span]:
    """Return attempts that no step has taken: of an incomplete group, unscored, failed, running, and of other kinds."""
    options: dict[str, Any] = {"version": head, "skill": 0.6, "draw": draw, "encode": encode}
    at = now_ns - 60 * SECOND_NS
    spans: list[Span] = []
    for member in range(3):
        spans += attempt(f"new-{member}", 50, group="next", at_ns=at + member * SECOND_NS, score=member != 2, **options)
    failed = Writer("failed", "order-4760", "other", "train", at, encode, head)
    failed.span("agent", "invoke_agent support", "root", 0.1, **attributes_of(semconv.INVOKE_AGENT))
    spans += failed.end(None, error="TimeoutError: the shop's database did not answer within 30 s")
    running = Writer("running", "order-4761", "another", "train", now_ns - 9 * SECOND_NS, encode, head)
    running.span("agent", "invoke_agent support", None, 1.0, **attributes_of(semconv.INVOKE_AGENT))
    spans += running.spans
    unclaimed = Writer("unclaimed", "summary-1", "summary-1", "train", at, encode, head)
    text = {
        semconv.OPERATION: semconv.CHAT,
        semconv.AGENT_NAME: "summarizer",
        semconv.RESPONSE_ID: "resp-1",
        semconv.INPUT_MESSAGES: as_json([message("user", "Summarize the week.")]),
        semconv.OUTPUT_MESSAGES: as_json([message("assistant", "Forty orders, two complaints.")]),
        semconv.INPUT_TOKENS: 900,
        semconv.OUTPUT_TOKENS: 40,
    }
    unclaimed.span("call", "chat gpt-5-mini", "root", 1.4, **text)
    return spans + unclaimed.end(1.0) + photo(at, head, encode) + hostile(at)


def canary_of(policy: PolicyConfig, version: int, live: int, began_ns: int, *, worse: bool) -> CanaryRecord:
    """Return a canary of a version that earns less, or more, than the live one, as the canary's own rule decides."""
    draw = random.Random(version)
    skills = {version: 0.38 if worse else 0.8, live: 0.55}
    seen = []
    config = CanaryConfig(share=0.2)
    usual = Usual(tokens=90.0, seconds=4.0)
    finding = judge_candidate(seen, version, live, config, usual)
    while finding.decision is Decision.GOING_ON:
        for _ in range(60):
            one = version if draw.random() < config.share else live
            reward, failed = float(draw.random() < skills[one]), draw.random() < 0.01
            seen.append(LiveRollout(one, reward, failed, False, False, draw.randrange(20, 94), draw.uniform(0.5, 4.1)))
        finding = judge_candidate(seen, version, live, config, usual)
    took_ns = len(seen) * SECOND_NS // 20
    evidence, state = finding.evidence(), finding.decision.value
    return CanaryRecord(policy.name, version, live, state, began_ns, began_ns + took_ns, evidence, finding.reason)


def _skill(version: int) -> float:
    return 0.25 + 0.65 * (1 - math.exp(-version / 8))


def _version(number: int, at_ns: int) -> PolicyVersion:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return PolicyVersion(
        POLICY,
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
        policy=POLICY,
        step=step,
        attempt_ids=names,
        ledger=build.ledger,
        state=StepState.ASSIGNED if build.batch else StepState.SKIPPED,
        metrics=metrics,
    )
    if build.batch is not None:
        await store.finish_step(POLICY, _report(build.batch, draw))


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
