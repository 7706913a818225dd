"""A step is filled until enough groups teach something, and no further than the bound."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.credit.group_collector import Collection
from lightning_trainer.samples.credit.groups import GroupSummary, groups_wanted
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import Attempt


def _policy(**algorithm) -> PolicyConfig:
    return PolicyConfig.model_validate(
        {"name": "p", "agents": ["*"], "model": "random:tiny", "groups_per_step": 4, "algorithm": algorithm}
    )


def _groups(sampled: int, flat: int, verdict: Reason = Reason.ZERO_VARIANCE_GROUP) -> list[GroupSummary]:
    verdicts = [Reason.SAMPLED] * sampled + [verdict] * flat
    return [GroupSummary(str(i), "t", 2, 2, (), one, None, flat=i >= sampled) for i, one in enumerate(verdicts)]


def test_it_asks_for_as_many_as_are_missing():
    assert groups_wanted(_policy(dynamic_sampling=True), 4, _groups(1, 3)) == 7
    assert groups_wanted(_policy(dynamic_sampling=True), 7, _groups(4, 3)) == 7


def test_it_asks_for_others_in_the_place_of_groups_that_are_kept_without_a_spread():
    assert groups_wanted(_policy(preset="grpo", dynamic_sampling=True), 4, _groups(1, 3, Reason.SAMPLED)) == 7


def test_without_it_a_step_is_what_it_is():
    assert groups_wanted(_policy(), 4, _groups(0, 4)) == 4


def test_it_stops_at_its_bound():
    policy = _policy(dynamic_sampling=True, max_sampling_rounds=2)
    assert groups_wanted(policy, 4, _groups(0, 4)) == 8
    assert groups_wanted(policy, 8, _groups(0, 8)) == 8


@pytest.mark.long
async def test_it_waits_while_groups_come_and_goes_on_with_all_that_came(
    tmp_path, monkeypatch, collecting_loop, make_attempt
):
    policy = _policy(dynamic_sampling=True).model_copy(update={"group_timeout_s": 1.0})
    there = 4
    built: list[int] = []
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        loop = collecting_loop(store, policy)

        def attempts() -> list[Attempt]:
            return [make_attempt(f"a{number}", group_id=f"g{number}") for number in range(there)]

        async def build(given: Sequence[Attempt], *_: Any) -> Build:
            built.append(len(given))
            return Build(None, (), tuple(_groups(1, len(given) - 1)), ())

        async def look() -> Collection:
            return Collection(tuple((one.group_id, (one,)) for one in attempts()), {})

        async def come() -> None:
            nonlocal there
            for _ in range(2):
                await asyncio.sleep(0.7)
                there += 1
                loop.steps._stored.set()

        monkeypatch.setattr(loop.steps._builder, "build", build)
        monkeypatch.setattr(loop.steps, "collect", look)
        coming = asyncio.create_task(come())
        async with asyncio.timeout(20):
            filled = await loop.steps.filled(tuple(attempts()), step=1)
        await coming
    assert filled is not None
    assert [one.group_id for one in filled[0]] == [f"g{number}" for number in range(6)]
    assert built == [4, 6]
    (said,) = loop.steps._progress.problems
    assert "dynamic sampling asked for 3 more groups, and 2 came until none came within group_timeout_s = 1;" in said


async def test_when_no_further_group_comes_the_step_goes_on_with_what_it_has(tmp_path, monkeypatch, collecting_loop):
    policy = _policy(dynamic_sampling=True).model_copy(update={"group_timeout_s": 0.05})
    build = Build(None, (), tuple(_groups(1, 3)), ())
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        loop = collecting_loop(store, policy)

        async def built(*_: Any) -> Build:
            return build

        monkeypatch.setattr(loop.steps._builder, "build", built)
        async with asyncio.timeout(10):
            assert await loop.steps.filled((), step=1) == ((), build)
    assert "dynamic sampling asked for 3 more groups, and none came within group_timeout_s = 0.05" in str(
        vars(loop.steps._progress)
    )
