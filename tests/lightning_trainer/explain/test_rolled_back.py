"""A step that training has gone back to before is not what it was: the weights no longer have it."""

import pytest


@pytest.fixture
def train(store, take_step, attempt):
    """``await train(3)``: a step that trains on rollouts r-a3 and r-b3."""

    async def step(number: int) -> None:
        names = f"a{number}", f"b{number}"
        for reward, name in enumerate(names):
            await store.append(attempt(name, group=f"g{number}", reward=float(reward), begins_s=60 * number).spans)
        await take_step(names, number)

    return step


async def test_what_training_went_back_behind_is_no_longer_in_the_weights(train, store, explain, page):
    for number in (1, 2, 3):
        await train(number)
    assert "cause good" in await page("/rollout?id=r-a2")
    await store.put_rollback("math", 1, at_ns=1)
    await train(4)
    assert explain("r-a2")[0] == (
        "rollout r-a2 is trained (step 2, 2 calls, 5 sampled tokens), but rolled back: step 2 was left behind when "
        "training went back to version 1; it is in versions 2 to 3, and not in what training goes on from"
    )
    assert "policy math, step 2 (trained, rolled back)" in explain("r-a2")[2]
    shown = await page("/rollout?id=r-a2")
    assert "cause plain" in shown
    assert explain("r-a2")[0] in shown
    for number in (1, 4):
        assert explain(f"r-a{number}")[0].startswith(f"rollout r-a{number} is trained: step {number}, ")


async def test_the_rollback_that_left_it_behind_is_named(train, store, explain):
    for number in (1, 2):
        await train(number)
    for version in (1, 2, 0):  # away from step 2, back to it, and away again
        await store.put_rollback("math", version, at_ns=1)
    assert "step 2 was left behind when training went back to version 0; it is in version 2, and" in explain("r-a2")[0]
    await store.put_rollback("math", 2, at_ns=1)
    assert "rolled back" not in " ".join(explain("r-a2"))


async def test_a_step_that_was_left_behind_before_it_was_trained_is_not_being_trained(train, store, explain):
    for number in (1, 2):
        await train(number)
    await store.write(
        lambda connection: connection.execute("UPDATE steps SET state = ?, report = NULL WHERE step = 2", ("assigned",))
    )
    assert "is being trained" in explain("r-a2")[0]
    await store.put_rollback("math", 1, at_ns=1)
    assert explain("r-a2")[0] == (
        "rollout r-a2 is not trained: rolled back: step 2 was left behind when training went back to version 1, before "
        "it was trained"
    )
