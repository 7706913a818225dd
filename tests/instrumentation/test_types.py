"""Decorators keep the type of what they decorate: pyright reads it in ``make check``, which asks for every ignore."""
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

import asyncio
from collections.abc import AsyncIterator
from typing import assert_type

import lightning_instrumentation as lt
import pytest


@lt.agent("support")
def answer(question: str) -> str:
    return question.upper()


@lt.agent
def count(question: str) -> int:
    return len(question)


@lt.agent("streamer")
async def words(question: str) -> AsyncIterator[str]:
    for word in question.split():
        yield word


@lt.tool
def look_up(order: str) -> float:
    return float(order)


@lt.tool("fetcher")
async def fetch(order: str, *, fast: bool = False) -> bytes:
    return order.encode() * (1 + fast)


@pytest.mark.usefixtures("recording")
def test_what_is_decorated_gives_what_it_gave() -> None:
    async def heard() -> list[str]:
        return [assert_type(word, str) async for word in words("over here")]

    assert assert_type(answer("where"), str) == "WHERE"
    assert assert_type(count("where"), int) == 5
    assert assert_type(look_up("2.5"), float) == 2.5
    assert asyncio.run(fetch("a", fast=True)) == b"aa"
    assert asyncio.run(heard()) == ["over", "here"]


async def _what_a_type_checker_refuses() -> None:
    answer(3)  # pyright: ignore[reportArgumentType]
    count()  # pyright: ignore[reportCallIssue]
    look_up("1", order="1")  # pyright: ignore[reportCallIssue]
    assert_type(await fetch("a", fast="yes"), bytes)  # pyright: ignore[reportArgumentType]
