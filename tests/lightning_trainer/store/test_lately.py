"""Whoever asks about a store that is written is answered soon, and asking costs little."""

import asyncio

import pytest

from lightning_trainer.errors import StoreError
from lightning_trainer.store import lately
from lightning_trainer.store.lately import Lately


class Slow:
    """Makes 1, 2, 3 ..., each when it is let go on."""

    def __init__(self) -> None:
        self.made = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.made += 1
        number = self.made
        await self.may_end.wait()
        return number


async def test_all_who_ask_at_once_get_one_answer():
    slow = Slow()
    answers = Lately(slow)
    asking = [asyncio.create_task(answers.get()) for _ in range(3)]
    await asyncio.sleep(0)
    slow.may_end.set()
    assert await asyncio.gather(*asking) == [1, 1, 1]


async def test_while_a_new_one_takes_long_the_one_before_is_given():
    slow = Slow()
    answers = Lately(slow)
    slow.may_end.set()
    assert await answers.get() == 1
    slow.may_end.clear()
    assert await answers.get() == 1
    slow.may_end.set()
    await asyncio.sleep(0)
    assert await answers.get() == 2


async def test_what_takes_long_is_not_made_again_at_once(monkeypatch):
    monkeypatch.setattr(lately, "_PATIENCE_S", 0.0)
    slow = Slow()
    slow.may_end.set()
    answers = Lately(slow)
    assert await answers.get() == 1
    answers._took_s = 100.0
    assert await answers.get() == 1
    answers._made_at -= 100.0 / lately._SHARE
    await answers.get()
    assert slow.made == 2


async def test_nothing_is_made_while_nothing_has_come():
    slow, stamps = Slow(), [7, 7, 7, 8, 8]
    slow.may_end.set()

    async def stamp() -> int:
        return stamps.pop(0)

    answers = Lately(slow, stamp)
    assert [await answers.get() for _ in range(4)] == [1, 1, 1, 2]


async def test_an_error_is_whoevers_asks_and_the_next_one_is_tried():
    broken = True

    async def make() -> str:
        if broken:
            raise StoreError("the store could not be read")
        return "fine"

    answers = Lately(make)
    with pytest.raises(StoreError):
        await answers.get()
    broken = False
    assert await answers.get() == "fine"
