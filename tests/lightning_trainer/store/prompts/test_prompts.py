"""Versions of prompts on each database: one is live for each default in the code, and what was written last counts."""

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import PromptError, UnknownVersionError
from lightning_trainer.store import SqliteStore, Store, prompts
from lightning_trainer.store import schema as sqlite_schema
from lightning_trainer.store.postgres import schema as postgres_schema
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.postgres.upkeep.copying import copy_to_postgres
from lightning_trainer.store.prompts import PromptState, PromptSummary, PromptVersion, root_of
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.upkeep.repair import repair
from lightning_trainer.store.worklist.forgetting import forget_rollout

A, B = "Answer with a number.", "Answer with a word."


async def register(store: Store, text: str = A, name: str = "clerk") -> PromptVersion:
    return await store.write(lambda c: prompts.register(c, name, root_of(text), text, 5))


async def add(store: Store, text: str, parent: int = 0, name: str = "clerk", **changes) -> PromptVersion:
    made_by, reason = changes.get("made_by", "reflect"), changes.get("reason")
    return await store.write(lambda c: prompts.add(c, name, text, parent, made_by, reason, 6))


async def states(store: Store, name: str = "clerk") -> list[str]:
    return [one.state for one in await store.scan(lambda c: prompts.select(c, name))]


def test_a_root_is_the_sha_256_of_the_utf_8_of_the_text() -> None:
    assert root_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert root_of("é") == "4a99557e4033c3539de2eb65472017cad5f9557f7a0625a09f1c3f6e2ba69c4c"


async def test_a_default_is_registered_once_and_live(store: Store) -> None:
    made = await register(store)
    assert made == PromptVersion("clerk", 0, root_of(A), A, None, PromptState.LIVE, "code", None, {}, 5)
    assert await store.write(lambda c: prompts.register(c, "clerk", root_of(A), A, 99)) == made
    assert await store.scan(lambda c: prompts.select(c, "clerk")) == [made]
    assert made.label == "clerk@v0"


async def test_a_version_comes_back_as_it_went_in(store: Store) -> None:
    await register(store)
    text, reason = "A {name} — 答え\n\t'\"%s ?1 :x \\u0041 \x7f", "it said % and ?"
    made = await add(store, text, made_by="person", reason=reason)
    assert made == PromptVersion("clerk", 1, root_of(A), text, 0, PromptState.CANDIDATE, "person", reason, {}, 6)
    assert (await store.scan(lambda c: prompts.select(c, "clerk")))[1] == made


async def test_a_changed_default_starts_a_line_of_its_own(store: Store) -> None:
    await register(store)
    better = await add(store, "Think, then answer with a number.")
    await store.write(lambda c: prompts.use(c, "clerk", better.version))
    assert (await register(store)).text == better.text
    changed = await register(store, B)
    assert (changed.version, changed.text, changed.state) == (2, B, PromptState.LIVE)
    live = await store.scan(lambda c: prompts.live(c, "clerk", root_of(B)))
    assert live == changed
    assert await states(store) == ["retired", "live", "live"]
    assert await store.scan(prompts.names) == [PromptSummary("clerk", (1, 2), 3)]


async def test_using_a_version_retires_the_live_one_of_its_root_alone_and_any_can_be_used_again(store: Store) -> None:
    await register(store)
    await register(store, B)
    await add(store, "a better number", 0)
    await add(store, "a better word", 1)
    for version, expected in (
        (2, ["retired", "live", "live", "candidate"]),
        (2, ["retired", "live", "live", "candidate"]),
        (3, ["retired", "retired", "live", "live"]),
        (0, ["live", "retired", "retired", "live"]),
    ):
        used = await store.write(lambda c, version=version: prompts.use(c, "clerk", version))
        assert (used.version, used.state) == (version, PromptState.LIVE)
        assert await states(store) == expected


async def test_the_same_text_of_one_root_is_one_version_whoever_proposes_it(store: Store) -> None:
    default = await register(store)
    assert await add(store, A) == default
    made = await add(store, "better")
    assert await add(store, "better", 1, made_by="person", reason="mine") == made
    other = await register(store, B)
    of_other = await add(store, "better", other.version)
    assert (of_other.version, of_other.root) == (3, other.root)


async def test_versions_are_counted_for_each_name(store: Store) -> None:
    await register(store)
    await register(store, A, "cook")
    assert (await add(store, "x")).version == 1
    assert (await add(store, "x", name="cook")).version == 1
    found = await store.scan(prompts.names)
    assert found == [PromptSummary("clerk", (0,), 2), PromptSummary("cook", (0,), 2)]


async def test_scores_of_a_stage_replace_its_earlier_ones_and_leave_the_others(store: Store) -> None:
    await register(store)
    for score in (
        {"validation": {"mean": 0.5, "tasks": 10}},
        {"held-out": {"mean": -1.25, "tasks": 3}},
        {"validation": {"mean": 0.61, "tasks": 50}},
    ):
        await store.write(lambda c, score=score: prompts.put_scores(c, "clerk", 0, score))
    (found,) = await store.scan(lambda c: prompts.select(c, "clerk"))
    assert found.scores == {"validation": {"mean": 0.61, "tasks": 50}, "held-out": {"mean": -1.25, "tasks": 3}}
    many = {f"stage {number}": {"mean": 0.0, "tasks": 1} for number in range(31)}
    with pytest.raises(PromptError, match="clerk@v0 would have scores of 33 stages: 32 are kept at most"):
        await store.write(lambda c: prompts.put_scores(c, "clerk", 0, many))


async def test_the_newest_versions_are_read_in_ascending_order(store: Store) -> None:
    await register(store)
    for number in range(1, 6):
        await add(store, str(number))

    async def read(**page: int) -> list[int]:
        return [one.version for one in await store.scan(lambda c: prompts.select(c, "clerk", **page))]

    assert await read() == [0, 1, 2, 3, 4, 5]
    assert await read(newest=2) == [4, 5]
    assert await read(before=4, newest=2) == [2, 3]
    assert await read(before=0) == []


async def test_what_is_not_there_is_named_in_a_sentence(store: Store) -> None:
    await register(store)
    for operation in (
        lambda c: prompts.add(c, "clerk", "x", 7, "person", None, 1),
        lambda c: prompts.use(c, "clerk", 7),
        lambda c: prompts.put_scores(c, "clerk", 7, {}),
    ):
        with pytest.raises(UnknownVersionError, match="prompt 'clerk' has no version 7: its versions are 0 to 0"):
            await store.write(operation)
    with pytest.raises(UnknownVersionError, match="there is no prompt 'cook'"):
        await store.write(lambda c: prompts.use(c, "cook", 0))
    assert await store.scan(lambda c: prompts.live(c, "cook", root_of(A))) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has 0 characters: give it 1 to 65,536"),
        ("x" * 65_537, "has 65,537 characters"),
        ("a\0b", "has character 0"),
        ("a\ud800", "a lone surrogate"),
    ],
)
async def test_a_text_that_cannot_be_kept_is_refused(store: Store, text: str, said: str) -> None:
    await register(store, "x" * 65_536, "long")
    with pytest.raises(PromptError, match=said):
        await register(store, text)
    with pytest.raises(PromptError, match=said):
        await add(store, text, name="long")
    assert [one.name for one in await store.scan(prompts.names)] == ["long"]


async def test_a_name_or_root_that_is_none_is_refused(store: Store) -> None:
    for name in ("", "-a", "a b", "a/b", "a\n", "é", "x" * 65):
        with pytest.raises(PromptError, match="cannot name a prompt: write 1 to 64 letters"):
            await register(store, A, name)
    await register(store, A, "0." + "x" * 62)
    with pytest.raises(PromptError, match="is not the SHA-256 of the default"):
        await store.write(lambda c: prompts.register(c, "clerk", root_of(B), A, 1))
    await register(store)
    with pytest.raises(PromptError, match="the reason has 10,001 characters"):
        await add(store, "x", reason="x" * 10_001)


async def test_defaults_that_are_put_together_anew_for_each_call_do_not_fill_the_store(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "MOST_ROOTS", 3)
    monkeypatch.setattr(prompts, "MOST_VERSIONS", 5)
    monkeypatch.setattr(prompts, "MOST_NAMES", 2)
    for day in range(3):
        await register(store, f"It is day {day}.")
    with pytest.raises(PromptError, match="prompt 'clerk' has 3 defaults already: give it a fixed text"):
        await register(store, "It is day 3.")
    assert (await register(store, "It is day 0.")).version == 0
    for number in range(2):
        await add(store, str(number))
    with pytest.raises(PromptError, match="prompt 'clerk' has 5 versions already"):
        await add(store, "one more")
    await register(store, A, "cook")
    with pytest.raises(PromptError, match="there are 2 prompts already: give 'third' the name of one of them"):
        await register(store, A, "third")


async def test_a_root_whose_live_version_was_lost_serves_its_default_again(store: Store) -> None:
    await register(store)
    better = await add(store, "better")
    await store.write(lambda c: prompts.use(c, "clerk", better.version))
    await store.write(lambda c: c.execute("DELETE FROM prompts WHERE version = 1").rowcount)
    again = await register(store)
    assert (again.version, again.state) == (0, PromptState.LIVE)
    assert await states(store) == ["live"]


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("register"), st.sampled_from((A, B))),
        st.tuples(st.just("add"), st.integers(0, 6), st.sampled_from((A, B, "x", "y", "z"))),
        st.tuples(st.just("use"), st.integers(0, 6)),
    ),
    max_size=25,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS)
async def test_whatever_is_done_each_root_has_one_live_version_and_each_text_one_number(store: Store, steps) -> None:
    await store.write(lambda c: c.execute("DELETE FROM prompts").rowcount)
    expected: list[list] = []  # of each version: root, text, parent, live
    for kind, *given_ in steps:
        if kind == "register":
            (text,) = given_
            found = await register(store, text)
            if not any(root == root_of(text) for root, *_ in expected):
                expected.append([root_of(text), text, None, True])
            assert [found.root, found.text, found.parent, True] == next(
                one for one in expected if one[0] == root_of(text) and one[3]
            )
            continue
        number = given_[0]
        work = (
            add(store, given_[1], number)
            if kind == "add"
            else store.write(lambda c, n=number: prompts.use(c, "clerk", n))
        )
        if number >= len(expected):
            with pytest.raises(UnknownVersionError):
                await work
        elif kind == "add":
            made, (root, *_) = await work, expected[number]
            same = [at for at, one in enumerate(expected) if one[:2] == [root, given_[1]]]
            if not same:
                expected.append([root, given_[1], number, False])
            assert made.version == (same[0] if same else len(expected) - 1)
        else:
            await work
            for one in expected:
                if one[0] == expected[number][0]:
                    one[3] = one is expected[number]
    rows = await store.scan(lambda c: prompts.select(c, "clerk"))
    assert [[one.root, one.text, one.parent, one.state is PromptState.LIVE] for one in rows] == expected
    assert [one.version for one in rows] == list(range(len(expected)))


async def test_neither_retention_nor_forgetting_deletes_a_prompt(make_store, make_root) -> None:
    limits = StoreConfig.model_validate({"retention_time": "1s", "retention_size": "16MiB"})
    async with make_store(limits) as store:
        store.retention.wanted_by = tuple
        default = await register(store)
        made = await add(store, "better " * 9_000)
        await store.append([make_root(number, f"a{number}") for number in range(1, 21)])
        await store.write(lambda c: c.execute("UPDATE received SET at_ns = 1").rowcount)
        store.retention.begin_sweep()
        while await store.sweep():
            pass
        assert (await store.counts())["spans"] < 20, "there was something to delete"
        await store.append([make_root(99, "z")])
        await store.erase(lambda c: forget_rollout(c, "rollout-of-z", now_ns=time.time_ns()))
        assert await store.scan(lambda c: prompts.select(c, "clerk")) == [default, made]


async def test_a_store_of_an_earlier_version_has_prompts_after_its_migration(
    make_store, make_root, monkeypatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(sqlite_schema, "MIGRATIONS", sqlite_schema.MIGRATIONS[:14])
        before.setattr(postgres_schema, "MIGRATIONS", postgres_schema.MIGRATIONS[:9])
        async with make_store() as store:
            await store.append([make_root(1, "a1")])
    async with make_store() as store:
        assert await store.scan(prompts.names) == []
        assert (await register(store)).version == 0
        assert (await store.counts())["spans"] == 1


async def test_prompts_are_kept_by_a_repair_and_by_a_move_to_postgresql(tmp_path: Path, postgres_url: str) -> None:
    path = tmp_path / "lightning.sqlite"
    async with SqliteStore(path) as store:
        await register(store)
        await register(store, B)
        await add(store, "better", reason="it was vague")
        await store.write(lambda c: prompts.put_scores(c, "clerk", 2, {"validation": {"mean": 0.5, "tasks": 4}}))
        written = await store.scan(lambda c: prompts.select(c, "clerk"))
    assert repair(tmp_path, {}).rows["prompts"] == 3
    assert copy_to_postgres(path, postgres_url).rows["prompts"] == 3
    for moved in (SqliteStore(path), PostgresStore(postgres_url)):
        async with moved as store:
            assert await store.scan(lambda c: prompts.select(c, "clerk")) == written
            assert (await add(store, "better still")).version == 3


async def test_a_file_of_an_earlier_version_is_read_as_one_without_prompts(tmp_path: Path) -> None:
    path = tmp_path / "lightning.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("".join(sqlite_schema.MIGRATIONS[:14]) + "PRAGMA user_version = 14;")
    with read_only(path) as connection:
        assert prompts.names(connection) == []
        assert prompts.select(connection, "clerk") == []


async def test_registrations_and_versions_at_once_collide_in_no_number(store: Store) -> None:
    found = await asyncio.gather(*(register(store) for _ in range(20)))
    assert {one.version for one in found} == {0}
    made = await asyncio.gather(*(add(store, f"text {number % 30}") for number in range(60)))
    assert {one.version for one in made} == set(range(1, 31))
