"""What a step's groups raise is the group's own: it is set aside with a sentence, and the others are trained."""

import asyncio
import time

import pytest

from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop import building
from lightning_trainer.daemon.loop.building import Builder
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import DamagedStoreError, StoreError
from lightning_trainer.samples import group_credit
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Outcome


@pytest.fixture
async def step(tmp_path, make_policy, attempt_spans, reward_span):
    """A builder, and the ended attempts of two groups with a spread of rewards each."""
    async with SqliteStore(tmp_path / "store.sqlite") as store:
        for number, attempt in enumerate(("a0", "a1", "b0", "b1")):
            spans = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + 10 * number, task=attempt[0])
            await store.append([*spans, reward_span(float(attempt[1]), attempt=attempt)])
        stored = asyncio.Event()
        builder = Builder(
            make_policy(), store=store, progress=Progress(), rollbacks=RollbackRequests(wake=stored), stored=stored
        )
        yield builder, await store.ended_attempts()


async def test_a_group_whose_credit_cannot_be_worked_out_is_set_aside(step, monkeypatch):
    builder, attempts = step
    assign = group_credit.assign

    def overflowing(trajectories, *args, **options):
        if trajectories[0].attempt.group_id == "a":
            raise OverflowError("intermediate overflow in fsum")
        return assign(trajectories, *args, **options)

    monkeypatch.setattr(group_credit, "assign", overflowing)
    build = await builder.build(attempts, 1)
    assert {sample.group_id for sample in build.batch.samples} == {"b"}
    assert {group.group_id: group.verdict for group in build.groups} == {"a": Reason.QUARANTINED, "b": Reason.SAMPLED}
    assert "group a is set aside and not trained: working on it ended in OverflowError" in " ".join(build.problems)
    of_a = [row for row in build.ledger if row.reason == Reason.QUARANTINED]
    assert [(row.outcome, row.calls) for row in of_a] == [(Outcome.DROPPED, 2)]


async def test_a_group_whose_spans_cannot_be_read_is_found_and_set_aside(step, monkeypatch):
    builder, attempts = step
    read_spans = building.read_spans

    def choking(spans):
        if any(span.attributes.get("lightning.attempt.id") == "b1" for span in spans):
            raise AttributeError("'NoneType' object has no attribute 'partition'")
        return read_spans(spans)

    monkeypatch.setattr(building, "read_spans", choking)
    build = await builder.build(attempts, 1)
    assert {sample.group_id for sample in build.batch.samples} == {"a"}
    assert {group.group_id: group.verdict for group in build.groups} == {"a": Reason.SAMPLED, "b": Reason.QUARANTINED}
    assert "group b is set aside" in build.problems[0]


async def test_a_group_whose_spans_lie_on_a_damaged_page_is_set_aside(step, monkeypatch):
    builder, attempts = step
    spans_of_attempts = builder._store.spans_of_attempts

    async def damaged(ids):
        if "a1" in ids:
            raise DamagedStoreError("the store cannot be read: database disk image is malformed")
        return await spans_of_attempts(ids)

    monkeypatch.setattr(builder._store, "spans_of_attempts", damaged)
    build = await builder.build(attempts, 1)
    assert {group.group_id: group.verdict for group in build.groups} == {"a": Reason.QUARANTINED, "b": Reason.SAMPLED}
    assert "database disk image is malformed" in build.problems[0]


async def test_a_store_that_cannot_be_read_is_nobodys_group(step, monkeypatch):
    builder, attempts = step

    async def unreadable(_):
        raise StoreError("the store could not be read: disk I/O error")

    monkeypatch.setattr(builder._store, "spans_of_attempts", unreadable)
    with pytest.raises(StoreError):
        await builder.build(attempts, 1)


async def test_ids_beyond_the_vocabulary_are_left_out_with_their_reason_before_a_batch_is_recorded(step):
    builder, attempts = step
    builder._vocabulary = 7  # the one sampled token has the id 7
    build = await builder.build(attempts, 1)
    assert build.batch is None
    assert {row.reason for row in build.ledger} == {Reason.NOT_IN_VOCABULARY}
    assert "beyond the vocabulary" in " ".join(build.problems)
    builder._vocabulary = 8
    assert (await builder.build(attempts, 1)).batch is not None


async def test_where_every_group_is_set_aside_the_step_trains_nothing(step, monkeypatch):
    builder, attempts = step

    def choking(spans):
        if spans:
            raise RecursionError("maximum recursion depth exceeded")
        return read_spans(spans)

    read_spans = building.read_spans
    monkeypatch.setattr(building, "read_spans", choking)
    build = await builder.build(attempts, 1)
    assert build.batch is None
    assert [group.verdict for group in build.groups] == [Reason.QUARANTINED] * 2
