"""What retention has deleted: it is said, and nothing else is blamed for what is no longer there."""

import time
from functools import partial

import pytest

from lightning_trainer.store.retention.sweep import delete_batches, expire_attempt


@pytest.fixture
async def trained(store, take_step, attempt):
    """A step has taken two attempts of one group, both trained."""
    await store.append([*attempt("a1").spans, *attempt("b1", reward=0.0, begins_s=60).spans])
    return await take_step(["a1", "b1"])


@pytest.fixture
def expire(store):
    """``await expire("a1")``: delete the spans of an attempt."""

    async def delete(name: str) -> None:
        await store.write(partial(expire_attempt, attempt_id=name, now_ns=time.time_ns()))

    return delete


async def test_a_step_whose_batch_was_deleted_is_not_called_one_that_was_built_without_the_call(
    trained, store, explain
):
    await store.write(lambda connection: delete_batches(connection, "math", 1))
    lines = explain("r-a1", columns=120)
    first = "rollout r-a1 was taken by a step (step 1, 2 calls, 5 sampled tokens), but deleted: the batch of step 1 was"
    assert lines[0].startswith(first)
    assert ["solver", "math@v3", "trained", "5", "2", "sampled"] in [line.split() for line in lines]


async def test_what_was_deleted_of_an_attempt_is_not_counted_as_nothing(trained, expire, explain):
    await expire("a1")
    lines = explain("r-a1")
    assert lines[0].startswith("rollout r-a1 was taken by a step (step 1), but deleted: the spans of attempt a1 were")
    assert not any("no calls" in line for line in lines)


async def test_the_others_of_its_step_have_no_problem_that_comes_of_the_deletion(trained, expire, explain):
    await expire("a1")
    lines = explain("r-b1")
    assert lines[0] == "rollout r-b1 is trained: step 1, 2 calls, 5 sampled tokens"
    assert "problems" not in lines


async def test_an_evaluation_is_one_also_after_its_spans_were_deleted(store, expire, attempt, explain):
    await store.append(attempt("e1", mode="evaluate").spans)
    await expire("e1")
    assert explain("r-e1")[0].startswith("rollout r-e1 is not trained: evaluation: attempt e1 was made with mode")


async def test_what_was_dropped_keeps_its_reason_after_its_spans_were_deleted(store, expire, attempt, explain):
    await store.append(attempt("d1").spans)
    await store.drop("d1", reason="the answer had leaked")
    await expire("d1")
    assert "dropped: attempt d1 was taken out of what is trained: the answer had leaked" in explain("r-d1")[0]
