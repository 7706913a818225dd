"""A version stays when a rule keeps it, and only then; what is served stays always."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.config.policies.versions import VersionsConfig
from lightning_trainer.versions.archive import kept
from lightning_trainer.versions.held_out import HeldOutScore

NUMBERS = st.sets(st.integers(0, 40), min_size=1)


def test_the_newest_every_nth_and_the_best_stay():
    scores = {version: HeldOutScore(mean, 8, 0.1) for version, mean in {3: 0.9, 4: 0.2, 7: 0.9, 12: 0.1}.items()}
    rule = VersionsConfig(keep_last=2, keep_every=5, keep_best=1)
    assert kept(range(13), scores, rule, served=12) == {0, 5, 7, 10, 11, 12}


def test_what_is_served_stays_after_a_rollback_made_it_old():
    assert kept([2, 8, 9], {}, VersionsConfig(keep_last=1, keep_best=0), served=2) == {2, 9}


def test_a_version_without_a_score_is_not_among_the_best():
    assert kept([1, 2, 3], {}, VersionsConfig(keep_last=1, keep_best=2), served=3) == {3}


def test_one_lucky_attempt_is_not_among_the_best():
    scores = {1: HeldOutScore(0.75, 200, 0.03), 2: HeldOutScore(1.0, 1, 0.43), 3: HeldOutScore(0.5, 200, 0.03)}
    assert kept([1, 2, 3], scores, VersionsConfig(keep_last=1, keep_best=1), served=3) == {1, 3}


SCORES = st.builds(HeldOutScore, st.floats(0, 1), st.integers(1, 99), st.none() | st.floats(0, 1))


@given(NUMBERS, st.dictionaries(st.integers(0, 40), SCORES), st.integers(1, 5), st.integers(0, 3))
def test_only_what_is_stored_is_kept_and_the_newest_always(stored, scores, last, best):
    stay = kept(stored, scores, VersionsConfig(keep_last=last, keep_best=best), served=min(stored))
    assert stay <= stored
    assert {min(stored), *sorted(stored)[-last:]} <= stay
    assert len(stay) <= 1 + last + best
