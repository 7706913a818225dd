"""A version stays when a rule keeps it, and only then; what is served stays always."""

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.config.policies.versions import VersionsConfig
from lightning_trainer.versions.archive import kept

NUMBERS = st.sets(st.integers(0, 40), min_size=1)


def test_the_newest_every_nth_and_the_best_stay():
    scores = {3: 0.9, 4: 0.2, 7: 0.9, 12: 0.1}
    rule = VersionsConfig(keep_last=2, keep_every=5, keep_best=1)
    assert kept(range(13), scores, rule, served=12) == {0, 5, 7, 10, 11, 12}


def test_what_is_served_stays_after_a_rollback_made_it_old():
    assert kept([2, 8, 9], {}, VersionsConfig(keep_last=1, keep_best=0), served=2) == {2, 9}


def test_a_version_without_a_score_is_not_among_the_best():
    assert kept([1, 2, 3], {}, VersionsConfig(keep_last=1, keep_best=2), served=3) == {3}


@given(NUMBERS, st.dictionaries(st.integers(0, 40), st.floats(0, 1)), st.integers(1, 5), st.integers(0, 3))
def test_only_what_is_stored_is_kept_and_the_newest_always(stored, scores, last, best):
    stay = kept(stored, scores, VersionsConfig(keep_last=last, keep_best=best), served=min(stored))
    assert stay <= stored
    assert {min(stored), *sorted(stored)[-last:]} <= stay
    assert len(stay) <= 1 + last + best
