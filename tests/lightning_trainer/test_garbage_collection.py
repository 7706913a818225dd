import gc

import pytest

from lightning_trainer.garbage_collection import without_garbage_collection


def test_the_collector_rests_inside_and_works_again_afterwards():
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_works_again_after_an_error():
    with pytest.raises(ZeroDivisionError), without_garbage_collection():
        1 / 0  # noqa: B018
    assert gc.isenabled()


def test_who_turned_it_off_finds_it_off():
    gc.disable()
    try:
        with without_garbage_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
