"""Recorded attempts to judge, and endpoints that answer as a script says."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pydantic import TypeAdapter

from lightning_trainer.config import Config
from lightning_trainer.config.judges import AnyJudge, JudgeConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.judging import Judging
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.types import Span
from tests.lightning_trainer.judges.scripted import (  # pyright: ignore[reportMissingImports]
    Script,
    recorded_attempt,
    scripted_endpoint,
)


@pytest.fixture(scope="session")
def attempt_to_judge() -> Callable[..., list[Span]]:
    """``attempt_to_judge(name, answers, group=, agents=, error=, content=)``: its spans; its rollout is ``r-name``."""
    return recorded_attempt


@pytest.fixture
def script() -> Iterator[Script]:
    """An endpoint on loopback that says what ``script.answers`` has."""
    with scripted_endpoint() as made:
        yield made


@pytest.fixture
def judge_config(script: Script) -> Callable[..., AnyJudge]:
    """``judge_config(kind, **settings)``: one that asks the scripted endpoint, where it asks a model."""

    def make(kind: str, **settings: Any) -> AnyJudge:
        base: dict[str, Any] = {"name": "helpful", "kind": kind}
        if kind != "program":
            base |= {"model": "judge-1", "base_url": script.url}
        if kind == "rubric":
            base["criterion"] = [
                {"name": "right", "says": "The final answer is right.", "weight": 3},
                {"name": "polite", "says": "It is polite."},
            ]
        return TypeAdapter(JudgeConfig).validate_python({**base, **settings})

    return make


class Sink:
    def __init__(self):
        self.spans = []

    async def append(self, spans):
        self.spans += spans
        return len(spans)

    async def of_trace(self, trace_id):
        return [span for span in self.spans if span.trace_id == trace_id]


@pytest.fixture
async def judge(judge_config, attempt_to_judge):
    """``judge(kind, names, **settings)``: the rewards that attempts get, by id, and the sink."""
    open_ones = []

    async def run(kind, answers, budget=None, spans=(), **settings):
        config = judge_config(kind, **settings)
        sink = Sink()
        judging = Judging(make_judge(config, engines_of(Config(), {}.__getitem__)), sink, sink.of_trace)
        open_ones.append(judging)
        for name, answer in answers.items():
            spans = [*spans, *attempt_to_judge(name, [answer])]
        attempts = list(read_spans(spans).attempts)
        judged = await judging.judge_group(spans, attempts, budget or Budget())
        return {one.attempt_id: one for one in judged}, sink

    yield run
    for judging in open_ones:
        await judging.close()
