import gc

import pytest

from lightning_trainer.bulk_objects import without_garbage_collection


def test_the_collector_rests_inside_and_works_again_afterwards():
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_works_again_after_an_error():
    with pytest.raises(ZeroDivisionError), without_garbage_collection():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off():
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_what_was_made_counts_as_old_and_is_not_walked_over_at_once():
    with without_garbage_collection():
        made = [[] for _ in range(10_000)]
    young = {id(one) for generation in (0, 1) for one in gc.get_objects(generation)}
    assert young.isdisjoint(map(id, made))
    assert gc.get_freeze_count() == 0


@pytest.mark.long
def test_what_somebody_else_froze_stays_frozen():
    gc.freeze()
    try:
        with without_garbage_collection():
            pass
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
