"""Age is counted in versions that were served."""

import pytest

from lightning_trainer.daemon.staleness import oldest_allowed, served, staleness_metrics
from lightning_trainer.types import PolicyVersion, Sample, Segment, VersionState


def _version(number: int, state: VersionState) -> PolicyVersion:
    return PolicyVersion("p", number, number, state, 0)


def test_only_what_was_live_counts() -> None:
    states = {0: "retired", 1: "refused", 2: "retired", 4: "live", 5: "trained"}
    assert served(_version(n, VersionState(state)) for n, state in states.items()) == (0, 2, 4)


@pytest.mark.parametrize(
    ("bound", "oldest"), [(None, 0), (0, 4), (1, 2), (2, 0), (3, 0)]
)  # of versions 0, 2 and 4 the newest has age 0
def test_the_bound_names_the_oldest_version(bound, oldest) -> None:
    assert oldest_allowed((0, 2, 4), bound) == oldest


def test_before_anything_is_served_nothing_is_stale() -> None:
    assert oldest_allowed((), 0) == 0


def _sample(*segments: tuple[int, int]) -> Sample:
    """Each segment: version, sampled tokens."""
    end, made = 1, []
    for version, tokens in segments:
        made.append(Segment(end, end + tokens, f"t{end}", version, 0.0, "row"))
        end += tokens
    return Sample("s", "p", "a", "g", "x", (1,) * end, (0,) + (1,) * (end - 1), (0.0,) * end, tuple(made))


def test_the_mean_is_over_tokens() -> None:
    # 6 tokens of version 4 (age 0), 2 of version 2 (age 1), 1 of version 0 (age 2)
    metrics = staleness_metrics([_sample((4, 6), (2, 2)), _sample((0, 1))], (0, 2, 4))
    assert metrics == {"staleness/mean": pytest.approx((2 * 1 + 1 * 2) / 9), "staleness/max": 2.0}


def test_no_tokens_have_no_age() -> None:
    assert staleness_metrics([], (0,)) == {}
