"""What a list of rollouts says that they earned is what they are trained on."""

import random
from dataclasses import replace
from importlib import import_module

import pytest
from lightning_instrumentation import semconv
from pydantic import TypeAdapter

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.judges import AnyJudge
from lightning_trainer.dashboard.reading import summaries
from lightning_trainer.dashboard.reading.summaries import SummaryCache
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.records import StepState
from lightning_trainer.types import Span, SpanEvent

STAGES = [{"steps": 1, "credit": {"scheme": "steps"}, "reward": "action"}, {"steps": 5}]
POLICY = PolicyConfig.model_validate(
    {"name": "support", "agents": ["support"], "model": "random:tiny", "stage": STAGES}
)


@pytest.fixture
def spans():
    """``spans(name)``: an attempt that earned 1; its two calls were given the reward ``action``, 0.25 each."""
    attempts = import_module("benchmarks.dashboard.example_attempts")

    def scored(span: Span) -> Span:
        if span.scope != semconv.GATEWAY_SCOPE:
            return span
        given = {semconv.EVALUATION_NAME: "action", semconv.EVALUATION_SCORE: 0.25}
        given[semconv.RESPONSE_ID] = span.attributes[semconv.RESPONSE_ID]
        return replace(span, events=(SpanEvent(semconv.EVALUATION_EVENT, span.end_ns - 1, given),))

    def spans(name: str, mode: str = "train") -> list[Span]:
        about = {"group": "g", "version": 0, "skill": 1.0, "draw": random.Random(0), "encode": attempts.letters}
        return [scored(span) for span in attempts.attempt(name, 1, at_ns=10**18, mode=mode, **about)]

    return spans


async def test_an_attempt_is_rewarded_as_in_the_stage_that_took_it_or_would(spans, tmp_path):
    cache = SummaryCache()
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append([*spans("a"), *spans("b"), *spans("c", mode="evaluate")])
        attempts = await store.attempts()

        async def rewards() -> dict[str, float | None]:
            found = await store.scan(lambda connection: cache.of(connection, attempts, [POLICY]))
            return {one.attempt.attempt_id: one.reward for one in found}

        given = {"a": 0.25 + 0.25, "b": 0.25 + 0.25, "c": 1.0}
        assert await rewards() == given
        await store.assign(None, policy="support", step=1, attempt_ids=["a"], ledger=(), state=StepState.SKIPPED)
        assert await rewards() == {**given, "b": 1.0}, "the second stage would take it"


JUDGE = {"name": "reward", "kind": "program", "command": ["true"], "checked_by": ["label"]}
CORRECTED = PolicyConfig.model_validate(
    {
        "name": "support",
        "agents": ["support"],
        "model": "random:tiny",
        "reward": {"reward": {"weight": 1.0, "correct": True}},
    }
)


async def test_what_a_judge_said_is_corrected_as_for_training(spans, tmp_path, monkeypatch):
    known, read, now = Correction(rho0=0.2, rho1=0.2), [], 0.0

    def corrections(connection, names, judges):
        read.append([judge.name for judge in judges])
        return dict.fromkeys(names, known)

    monkeypatch.setattr(summaries, "corrections", corrections)
    cache = SummaryCache([TypeAdapter(AnyJudge).validate_python(JUDGE)], clock=lambda: now)
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:

        async def rewards() -> dict[str, float | None]:
            attempts = await store.attempts()
            found = await store.scan(lambda connection: cache.of(connection, attempts, [CORRECTED]))
            return {one.attempt.attempt_id: one.reward for one in found}

        judged = {semconv.JUDGE_NAME: "reward"}
        of_judge = [replace(span, attributes={**span.attributes, **judged}) for span in spans("a")]
        await store.append([*of_judge, *spans("c", mode="evaluate")])
        held_out = {"c": 1.0}  # versions are compared by what was given
        assert await rewards() == {"a": pytest.approx((1 - 0.2) / 0.6), **held_out}
        assert read == [["reward"]]
        known = Correction(refused="too few labels")
        assert (await rewards())["a"] is not None
        assert read == [["reward"]], "nothing has come since"
        label = replace(spans("a")[0], name="evaluate label", span_id="ab" * 8, events=())
        await store.append([label])
        assert await rewards() == {"a": None, **held_out}
        assert read == [["reward"]] * 2
