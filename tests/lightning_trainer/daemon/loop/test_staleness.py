"""Age is counted in versions that were served."""

import time

import pytest

from lightning_trainer.daemon.loop.building import fresh, served
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, VersionState


def test_what_was_rolled_back_does_not_count() -> None:
    assert served([3, 0, 4, 2], path=(0, 1, 2, 4)) == (0, 2, 4)


# Of versions 0, 2 and 4 the newest has age 0; 3 and 5 are on the way but were held back, and 1 and 6 were rolled back.
@pytest.mark.parametrize(
    ("bound", "expected"), [(0, {4, 5}), (1, {2, 3, 4, 5}), (2, {0, 2, 3, 4, 5}), (3, {0, 2, 3, 4, 5})]
)
def test_fresh_is_what_led_to_the_weights_and_is_not_too_old(bound, expected) -> None:
    assert fresh((0, 2, 4), (0, 2, 3, 4, 5), bound) == expected


def test_without_a_bound_every_version_is_fresh() -> None:
    assert fresh((0, 2, 4), (0, 2, 4), None) is None


def test_before_anything_is_served_nothing_is_stale() -> None:
    assert fresh((), (0, 1), 0) == {0, 1}


@pytest.mark.parametrize(
    ("version", "bound", "reason", "age"), [(4, 0, "stale", None), (2, 0, "sampled", 0.0), (4, None, "sampled", 1.0)]
)
async def test_what_a_version_that_was_rolled_back_sampled_is_stale(
    tmp_path, attempt_spans, reward_span, make_policy, collecting_loop, version, bound, reason, age
) -> None:
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        for number, step in enumerate((0, 1, 2, 3, 4, 2)):
            await store.put_version(PolicyVersion("math", step, step, VersionState.LIVE, number))
        for number, attempt in enumerate(("a0", "a1")):
            spans = attempt_spans(attempt, [1, 2], time.time_ns() - 10**9 + number, task="a", version=version)
            await store.append([*spans, reward_span(float(number), attempt=attempt)])
        loop = collecting_loop(store, make_policy(group_size=2, groups_per_step=1, max_staleness=bound))
        loop._weights._path = [0, 1, 2]
        attempts = (await loop.steps.collect()).next_step(1)
        assert attempts is not None
        filled = await loop.steps.filled(attempts, 5)
        assert filled is not None
        _, build = filled
        assert {row.reason for row in build.ledger} == {reason}
        ages = sampling_metrics(build.batch, await loop._weights.served(), loop._weights.path) if build.batch else {}
        assert ages.get("staleness/max") == age
