"""Age is counted in versions that were served."""

import pytest

from lightning_trainer.daemon.loop.building import oldest_allowed, served


def test_what_was_rolled_back_does_not_count() -> None:
    assert served([3, 0, 4, 2], path=(0, 1, 2, 4)) == (0, 2, 4)


@pytest.mark.parametrize(
    ("bound", "oldest"), [(None, 0), (0, 4), (1, 2), (2, 0), (3, 0)]
)  # of versions 0, 2 and 4 the newest has age 0
def test_the_bound_names_the_oldest_version(bound, oldest) -> None:
    assert oldest_allowed((0, 2, 4), bound) == oldest


def test_before_anything_is_served_nothing_is_stale() -> None:
    assert oldest_allowed((), 0) == 0
