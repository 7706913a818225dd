"""Two loops over one store: each policy consumes each group that it took part in once, and counts its own tokens."""

import asyncio
import contextlib
import itertools
import time
from array import array
from collections import Counter
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv

from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.api.status import status_router
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.loop.worklist import concerned
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, Span, SpanEvent, StepReport, TrainingBatch, VersionState

TOKENS = {"planner": 2, "worker": 3}
"""Sampled by a call of each agent, who is the namesake of its policy."""
_numbers = itertools.count(1)


def attempt_spans(name: str, group: str, agents: tuple[str, ...], reward: float) -> list[Span]:
    """An ended attempt with a reward, in which these agents made a call each."""
    own = {semconv.ROLLOUT_ID: name, semconv.ATTEMPT_ID: name, semconv.TASK_ID: group, semconv.GROUP_ID: group}
    trace_id, root_id = f"{next(_numbers):032x}", f"{next(_numbers):016x}"
    spans = []
    for agent in agents:
        ids = range(TOKENS[agent])
        call = {
            **own,
            semconv.AGENT_NAME: agent,
            semconv.OPERATION: semconv.CHAT,
            semconv.RESPONSE_ID: f"response-{next(_numbers)}",
            semconv.POLICY: agent,
            semconv.POLICY_VERSION: 0,
            semconv.PROMPT_TOKEN_IDS: array("i", [1, 2]).tobytes(),
            semconv.CHOICES: 1,
            semconv.response_token_ids(0): array("i", ids).tobytes(),
            semconv.response_logprobs(0): array("f", [-0.5 for _ in ids]).tobytes(),
        }
        span_id = f"{next(_numbers):016x}"
        spans.append(Span(trace_id, span_id, root_id, "chat", 2, 3, call, scope=semconv.GATEWAY_SCOPE))
    scored = {semconv.EVALUATION_NAME: "reward", semconv.EVALUATION_SCORE: reward}
    events = (SpanEvent(semconv.EVALUATION_EVENT, 4, scored),)
    ended = {**own, semconv.ROLLOUT_ROOT: True}
    return [*spans, Span(trace_id, root_id, None, "rollout", 1, time.time_ns(), ended, events=events)]


class Side:
    """One policy's loop, with a trainer that keeps its batches."""

    def __init__(self, policy: PolicyConfig, store: SqliteStore, sink: NotifyingStore, folder) -> None:
        self.name = policy.name
        self.batches: list[TrainingBatch] = []
        self.progress = Progress()
        self.refused_in_a_row = 0
        self._store = store
        stored = sink.watch(policy.name, self.progress)
        itself: Any = self
        self.loop = TrainingLoop(
            LoopContext(
                policy=policy,
                store=store,
                progress=self.progress,
                metrics=MetricsRecorder(policy.name, store, folder=folder),
                rollbacks=RollbackRequests(wake=stored),
                stored=stored,
                one_of_several=True,
            ),
            trainer=itself,
            publisher=itself,
            checkpoints=CheckpointFolder(folder / policy.name, keep=1),
        )

    async def step(self, batch: TrainingBatch) -> StepReport:
        self.batches.append(batch)
        return StepReport(batch.step, {}, {}, 1, 1, 1, {})

    async def save(self, directory, step: int) -> None: ...

    async def set_aside(self) -> None: ...

    async def publish(
        self, *, version: int, step: int, asked_for: bool = False, changed: str | None = None
    ) -> PolicyVersion:
        made = PolicyVersion(self.name, version, step, VersionState.LIVE, 0)
        await self._store.put_version(made)
        return made


async def test_a_runner_is_told_of_the_groups_of_its_own_policy(tmp_path) -> None:
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        for name, group, agents in (
            ("a", "run/step-1/t", ("planner",)),
            ("b", "run/step-1/t", ()),  # broke off before anybody's turn, and is part of the comparison
            ("c", "run/step-1/u", ("worker",)),
            ("d", "run/step-1/v", ("planner", "worker")),
            ("e", "other/step-1/t", ("planner",)),
            ("f", "run/step-1/w", ()),
        ):
            await store.append(attempt_spans(name, group, agents, 1.0))
        watched: list[Any] = [
            SimpleNamespace(policy=policy, progress=Progress(), metrics=None)
            for policy in Config.model_validate({"policy": [_policy("planner"), _policy("worker")]}).policy
        ]
        app = FastAPI()
        app.include_router(status_router(watched, store=store))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://daemon") as client:
            found = {
                name: (await client.get(f"/lightning/policies/{name}/groups?prefix=run/step-1/")).json()
                for name in ("planner", "worker")
            }
    assert found["planner"] == {"run/step-1/t": 2, "run/step-1/v": 1}
    assert found["worker"] == {"run/step-1/u": 1, "run/step-1/v": 1}


_AGENTS = st.sampled_from([(), ("planner",), ("worker",), ("planner", "worker")])
_GROUPS = st.lists(st.tuples(_AGENTS, _AGENTS), min_size=1, max_size=5)


@pytest.mark.long
@settings(max_examples=25, deadline=None)
@given(groups=_GROUPS, data=st.data())
async def test_each_policy_consumes_its_groups_once_and_nothing_is_lost(groups, data, tmp_path_factory):
    attempts = {
        f"a{number}-{index}": (f"g{number}", agents, float(index))
        for number, pair in enumerate(groups)
        for index, agents in enumerate(pair)
    }
    order = data.draw(st.permutations(sorted(attempts)))
    delivered = {name: attempt_spans(name, *attempts[name]) for name in order}
    taking_part = {policy: {group for group, agents, _ in attempts.values() if policy in agents} for policy in TOKENS}
    async with contextlib.AsyncExitStack() as stack:
        folder = tmp_path_factory.mktemp("several")
        store = await stack.enter_async_context(SqliteStore(folder / "lightning.sqlite"))
        sink = NotifyingStore(store)
        config = Config.model_validate({"policy": [_policy("planner"), _policy("worker", "*")]})
        sides = [Side(policy, store, sink, folder) for policy in config.policy]
        loops = [asyncio.create_task(side.loop.run()) for side in sides]
        try:
            for name in order:
                await sink.append(delivered[name])
            async with asyncio.timeout(60):
                for side, loop in zip(sides, loops, strict=True):
                    while side.progress.steps_done < len(taking_part[side.name]):
                        assert not loop.done(), loop.result()
                        await asyncio.sleep(0.005)
        finally:  # a store is not closed under those who use it
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        for side in sides:
            steps = await store.steps(side.name)
            consumed = Counter(attempt for step in steps for attempt in step.attempt_ids)
            expected = {name for name, (group, _, _) in attempts.items() if group in taking_part[side.name]}
            assert consumed == dict.fromkeys(expected, 1)
            segments = [s for batch in side.batches for sample in batch.samples for s in sample.segments]
            assert len({segment.transition_id for segment in segments}) == len(segments)
            assert all(sample.agent == side.name for batch in side.batches for sample in batch.samples)
            _check_ledger(side.name, await store.ledger(side.name), {name: attempts[name] for name in expected})


def _check_ledger(policy: str, ledger, attempts: Mapping[str, tuple[str, tuple[str, ...], float]]) -> None:
    """Every token of the consumed attempts is there once; another policy's as ``other_policy`` and as nothing else."""
    for agent, tokens in TOKENS.items():
        rows = [row for row in ledger if row.agent == agent]
        assert sum(row.tokens for row in rows) == tokens * sum(agent in agents for _, agents, _ in attempts.values())
        assert all((row.reason == "other_policy") == (agent != policy) for row in rows)


def _policy(name: str, agents: str | None = None) -> dict:
    return {
        "name": name,
        "agents": [agents or name],
        "model": "random:tiny",
        "group_size": 2,
        "groups_per_step": 1,
    }


@pytest.mark.parametrize("took_part", [set(), {"b"}, {"c"}, {"a", "c"}])
def test_a_group_is_a_policys_with_all_of_its_attempts(took_part, make_attempt):
    group_of = {"a": "g", "b": "g", "c": "h"}
    ended = [make_attempt(name, group_id=group) for name, group in group_of.items()]
    groups = {group_of[name] for name in took_part}
    found = [attempt.attempt_id for attempt in concerned(ended, took_part)]
    assert found == [name for name, group in group_of.items() if group in groups]


async def test_a_late_reward_is_said_to_the_policy_that_consumed_its_attempt_alone(tmp_path, reward_span):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        sink = NotifyingStore(store)
        progress = {name: Progress() for name in TOKENS}
        for name, one in progress.items():
            sink.watch(name, one)
        await sink.append(attempt_spans("a", "g", ("planner", "worker"), 1.0))
        await store.assign(None, policy="planner", step=1, attempt_ids=["a"], ledger=[], state="skipped")
        await sink.append([reward_span(0.5, attempt="a")])
    assert {name: one.late_rewards for name, one in progress.items()} == {"planner": 1, "worker": 0}
