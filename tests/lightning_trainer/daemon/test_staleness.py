"""Age is counted in versions that were served."""

import pytest

from lightning_trainer.daemon.loop.staleness import oldest_allowed, served
from lightning_trainer.types import PolicyVersion, VersionState


def _version(number: int, state: VersionState) -> PolicyVersion:
    return PolicyVersion("p", number, number, state, 0)


def test_only_what_was_live_counts_and_was_not_rolled_back() -> None:
    states = {0: "retired", 1: "refused", 2: "retired", 3: "retired", 4: "live", 5: "trained"}
    versions = [_version(n, VersionState(state)) for n, state in states.items()]
    assert served(versions, path=(0, 1, 2, 4)) == (0, 2, 4)


@pytest.mark.parametrize(
    ("bound", "oldest"), [(None, 0), (0, 4), (1, 2), (2, 0), (3, 0)]
)  # of versions 0, 2 and 4 the newest has age 0
def test_the_bound_names_the_oldest_version(bound, oldest) -> None:
    assert oldest_allowed((0, 2, 4), bound) == oldest


def test_before_anything_is_served_nothing_is_stale() -> None:
    assert oldest_allowed((), 0) == 0
