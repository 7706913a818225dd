"""What is too much, too old or used is deleted; what a step still can want never is, and what went stays away."""

import asyncio
import contextlib
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv
from pydantic import ValidationError

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.daemon.state_folder import keep_within_limits
from lightning_trainer.errors import RollbackError, StoreError
from lightning_trainer.store import SqliteStore, Store
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres import store as postgres
from lightning_trainer.store.retention import retention, sweep
from lightning_trainer.store.retention.retention import give_back, measure
from lightning_trainer.store.tables import spans as spans_table
from lightning_trainer.types import PolicyVersion, Sample, Segment, Span, StepReport, TrainingBatch, VersionState
from lightning_trainer.versions.rollback import record_rollback

LIMIT = 16 * 2**20
_DAY_NS = 86400 * 10**9


def limits(**settings: object) -> StoreConfig:
    """As they are written in lightning.toml."""
    return StoreConfig.model_validate(settings)


def attempt_spans(
    name: str, *, calls: int = 3, text: int = 2000, ended: bool = True, mode: str = "train"
) -> list[Span]:
    own = {semconv.ATTEMPT_ID: name, semconv.ROLLOUT_ID: f"r-{name}", semconv.GROUP_ID: "g", semconv.ROLLOUT_MODE: mode}
    trace = f"{abs(hash(name)) or 1:032x}"[-32:]
    made = [Span(trace, f"{n + 2:016x}", None, "chat", 1, 2, {**own, "text": "x" * text}) for n in range(calls)]
    root = Span(trace, f"{1:016x}", None, "rollout", 1, 2, {**own, semconv.ROLLOUT_ROOT: True})
    return [*made, root] if ended else made


def batch(step: int, tokens: int = 20_000) -> TrainingBatch:
    ids = tuple((n * 7919 + step) % 50_000 for n in range(tokens))
    mask = (0, *(1 for _ in ids[1:]))
    logprobs = (0.0, *(-((n * step) % 997) / 99 for n in range(1, tokens)))
    segment = Segment(1, tokens, f"c{step}/0", 0, 1.0, "a")
    return TrainingBatch("p", step, (Sample("s", "p", "x", "g", f"a{step}", ids, mask, logprobs, (segment,)),))


async def take(store: Store, step: int, attempts: Collection[str]) -> None:
    await store.assign(batch(step), policy="p", step=step, attempt_ids=list(attempts), ledger=[])
    report = StepReport(step, {"x": 1.0}, {"s": (0.5,) * 5000}, 1, 1, 1, {})
    await store.finish_step("p", report)


def on_disk(path: Path) -> int:
    files = (path.with_name(path.name + suffix) for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


async def swept(store: Store) -> None:
    if store.retention.wanted_by is None:
        store.retention.wanted_by = tuple
    store.retention.begin_sweep()
    while await store.sweep():
        pass


async def long_ago(store: Store, days: float) -> None:
    """Let what is stored have come so many days earlier."""

    def shift(connection: Connection) -> None:
        (last,) = connection.execute("SELECT max(seq) FROM spans").fetchone()
        connection.execute(
            "INSERT INTO received VALUES (?, ?) ON CONFLICT(seq) DO UPDATE SET at_ns = excluded.at_ns",
            (last, time.time_ns()),
        )
        connection.execute("UPDATE received SET at_ns = at_ns - ?", (int(days * _DAY_NS),))

    await store.write(shift)


@pytest.mark.long
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_the_size_stays_below_the_limit_with_writers_beside_it(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("size") / "lightning.sqlite"
    kept = data.draw(st.sets(st.integers(0, 99), max_size=5))
    # Long texts: what is stored is bytes, and each span takes time of its own.
    text = data.draw(st.integers(1500, 18_000))
    most, number = 0, 0
    async with SqliteStore(path, limits(retention_size="16MiB")) as store:
        store.retention.wanted_by = lambda: ["p"]
        store.retention.repeatable_from = lambda _: {"p": number // 5 - 2}
        await store.enroll("p")
        for number in range(100):
            names = [f"{number}-{n}" for n in range(3)]
            await asyncio.gather(*(store.append(attempt_spans(name, calls=9, text=text)) for name in names))
            most = max(most, on_disk(path))
            if number not in kept:
                if number % 5 == 0:
                    await take(store, number // 5 + 1, names)
                else:
                    await store.write(
                        lambda connection, names=names: connection.executemany(
                            "DELETE FROM waiting WHERE attempt_id = ?", [(name,) for name in names]
                        )
                    )
        assert most < LIMIT
        written = 100 * 3 * 10
        holds, counts = await store.holds(), await store.counts()
        assert counts["spans"] + holds["deleted"]["spans"] == written
        if 9 * 300 * text > 2 * LIMIT:
            assert holds["deleted"]["spans"] > 0
        waiting = {one.attempt.attempt_id for one in await store.waiting_attempts("p")}
        assert waiting == {f"{number}-{n}" for number in kept for n in range(3)}
        for name in waiting:
            assert len(await store.spans_of_attempts([name])) == 10, "a step can still want it"
        # Steps behind the oldest checkpoint can be repeated.
        for step in range(max(1, number // 5 - 1), 20):
            if (step - 1) * 5 not in kept:
                assert (await store.batch("p", step)).step == step


async def test_a_store_that_holds_more_than_it_may_because_all_is_wanted_says_so(make_store):
    async with make_store(limits(retention_size="16MiB")) as store:
        store.retention.wanted_by = lambda: ["p"]
        await store.enroll("p")
        for number in range(50):  # few and large: with each that comes, what could be deleted is looked for in vain
            await store.append(attempt_spans(f"a{number}", calls=10, text=40_000))
        holds = await store.holds()
        assert (await store.counts())["spans"] == 550
    assert "more than [store] retention_size allows" in holds["note"]


async def test_where_nothing_may_be_deleted_it_is_not_looked_for_at_each_commit(make_store, monkeypatch):
    """Before, each took a tenth of a second, for ever."""
    looks, look = [], sweep.delete_spans

    def counted(*arguments, **named):
        looks.append(1)
        return look(*arguments, **named)

    monkeypatch.setattr(sweep, "delete_spans", counted)
    async with make_store(limits(retention_size="16MiB")) as store:
        store.retention.wanted_by = lambda: ["p"]
        await store.enroll("p")
        for number in range(45):
            await store.append(attempt_spans(f"a{number}", calls=10, text=40_000))
        assert looks, "it is full"
        looks.clear()
        for number in range(20):
            await store.append(attempt_spans(f"b{number}"))
    assert len(looks) < 5


async def test_of_a_step_with_very_many_attempts_all_go(make_store, monkeypatch):
    monkeypatch.setattr(sweep, "_NAMES", 4)
    async with make_store(limits(retention_steps=1)) as store:
        store.retention.repeatable_from = lambda _: {"p": 3}
        for step in range(1, 4):
            names = [f"a{step}-{number}" for number in range(10)]
            await store.append([span for name in names for span in attempt_spans(name, calls=1)])
            await take(store, step, names)
        await swept(store)
        left = [n for step in range(1, 4) for n in range(10) if await store.spans_of_attempts([f"a{step}-{n}"])]
    assert left == list(range(10)), "those of the newest step"


async def test_a_store_whose_size_is_costly_to_measure_is_held_too(make_store, monkeypatch):
    monkeypatch.setattr(postgres, "_SHARE", 1e9)  # as if measuring took seconds, which it does on a disk that is busy
    async with make_store(limits(retention_size="16MiB")) as store:
        store.retention.wanted_by = tuple
        for number in range(100):
            await store.append(attempt_spans(f"a{number}", calls=10, text=20_000))
        holds, counts = await store.holds(), await store.counts()
    assert holds["deleted"]["spans"] == 1100 - counts["spans"] > 300
    assert holds["size_bytes"] < 1.5 * LIMIT


@pytest.mark.long
async def test_a_store_that_is_not_told_what_is_wanted_deletes_nothing(tmp_path):
    path, full = tmp_path / "s.sqlite", limits(retention_size="16MiB", retention_time="60s", retention_steps=1)
    async with SqliteStore(path, full) as store:
        store.retention.wanted_by = lambda: ["p"]
        await store.enroll("p")
        for number in range(70):
            await store.append(attempt_spans(f"a{number}", calls=10, text=20_000))
        await long_ago(store, 2)
    # As a command finds it that writes to the store of a stopped daemon, and as a daemon has it before it knows.
    async with SqliteStore(path, full) as store:
        await store.append(attempt_spans("new"))
        while await store.sweep():
            pass
        assert (await store.counts())["spans"] == 774
        assert len(await store.waiting_attempts("p")) == 71


async def test_what_is_too_old_goes_and_is_not_stored_again(make_store):
    async with make_store(limits(retention_time="30d")) as store:
        await store.enroll("p")
        await store.append(attempt_spans("old"))
        await store.append(attempt_spans("wanted"))
        await store.append(attempt_spans("straddles", ended=False))
        await long_ago(store, 31)
        await store.append(attempt_spans("new"))
        await store.append(attempt_spans("straddles")[-1:])
        store.retention.wanted_by = lambda: ["p"]
        await store.write(lambda c: c.execute("DELETE FROM waiting WHERE attempt_id = 'old'"))
        await swept(store)
        assert await store.spans_of_attempts(["old"]) == []
        for name, spans in (("wanted", 4), ("new", 4), ("straddles", 4)):
            assert len(await store.spans_of_attempts([name])) == spans
        assert (await store.holds())["deleted"] == {"spans": 4, "attempts": 1, "batches": 0, "media": 0}
        assert await store.append(attempt_spans("old")) == 0, "it was acknowledged long ago"
        assert "old" not in {one.attempt.attempt_id for one in await store.waiting_attempts("p")}
        assert (await store.counts())["spans"] == 12
        assert (await store.counts())["attempts"]["succeeded"] == 4
        await store.write(lambda c: c.execute("UPDATE expired SET at_ns = at_ns - ?", (31 * _DAY_NS,)))
        await swept(store)
        assert await store.attempt("old") is None
        assert (await store.counts())["attempts"]["succeeded"] == 3
        assert (await store.counts())["rollouts"] == 3


@pytest.mark.parametrize("idle_days", [0, 40])
@pytest.mark.parametrize("wrong_ns", [0, -20 * 365 * _DAY_NS, 20 * 365 * _DAY_NS])
async def test_a_clock_that_was_wrong_for_a_while_takes_nothing_with_it(make_store, monkeypatch, wrong_ns, idle_days):
    now_ns, wrong = time.time_ns() + 50 * _DAY_NS, 0
    monkeypatch.setattr(spans_table.time, "time_ns", lambda: now_ns + wrong)
    async with make_store(limits(retention_time="30d")) as store:
        store.retention.wanted_by = tuple
        for name, age_days, off_ns in (
            *(("older", 50, 0), ("old", 49, 0), ("before", idle_days, 0)),
            *(("first", 0, wrong_ns), ("second", 0, wrong_ns), ("after", 0, 0)),
        ):
            now_ns += 60 * 10**9
            wrong = off_ns - age_days * _DAY_NS
            await store.append(attempt_spans(name))
        wrong = 0
        await swept(store)
        names = ("older", "old", "before", "first", "second", "after")
        kept = [name for name in names if await store.spans_of_attempts([name])]
        assert kept == list(names[2:] if idle_days < 30 else names[3:])


async def test_a_late_reward_and_a_record_without_trace_context_stay_with_their_attempt(make_store, make_span):
    async with make_store(limits(retention_time="1d")) as store:
        await store.enroll("p")
        store.retention.wanted_by = lambda: ["p"]
        own = {semconv.ATTEMPT_ID: "a", semconv.ROLLOUT_ID: "r-a", semconv.RESPONSE_ID: "x"}
        await store.append([make_span(1, attributes=own), *attempt_spans("a")])
        await store.append([make_span(2, trace=8, attributes={semconv.ROLLOUT_ID: "r-a"})])
        await store.append([make_span(3, trace=9, attributes={semconv.RESPONSE_ID: "x"}), make_span(4, trace=10)])
        await long_ago(store, 2)
        await store.append(attempt_spans("new"))
        await swept(store)
        assert len(await store.spans_of_attempts(["a"])) == 7
        assert (await store.counts())["spans"] == 11
        await take(store, 1, ["a"])
        await swept(store)
        assert (await store.counts())["spans"] == 4


async def test_an_attempt_that_never_ends_is_not_kept_for_ever(make_store, monkeypatch):
    async with make_store(limits(retention_time="1h")) as store:
        await store.append(attempt_spans("a", ended=False))
        await long_ago(store, 0.5)
        await store.append(attempt_spans("new"))
        await swept(store)
        assert len(await store.spans_of_attempts(["a"])) == 3, "it may still be running"
        await long_ago(store, 1)
        await store.append(attempt_spans("newer"))
        await swept(store)
        assert await store.spans_of_attempts(["a"]) == []


async def test_what_old_steps_used_goes_and_their_ledger_and_metrics_stay(make_store):
    async with make_store(limits(retention_steps=2)) as store:
        store.retention.repeatable_from = lambda _: {"p": 4}
        for step in range(1, 7):
            await store.append(attempt_spans(f"a{step}"))
            await take(store, step, [f"a{step}"])
            await store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, step))
        await swept(store)
        left = [step for step in range(1, 7) if await store.spans_of_attempts([f"a{step}"])]
        assert left == [5, 6]
        assert await store.without_batch("p", range(1, 7)) == [1, 2, 3, 4]
        record = await store.step("p", 1)
        assert record.report is not None
        assert (record.report.metrics, record.report.advantages) == ({"x": 1.0}, {})
        with pytest.raises(StoreError, match="has no batch"):
            await store.batch("p", 1)
        with pytest.raises(RollbackError, match=r"p@v2 cannot be made again: the batches of 2 steps .*\(1 to 2\)"):
            await record_rollback(store, "p", 2)
        assert (await record_rollback(store, "p", 5, checkpoints=[4])).version == 5


async def test_batches_behind_the_oldest_checkpoint_are_kept_whatever_the_limits_say(make_store):
    async with make_store(limits(retention_steps=1, retention_time="60s")) as store:
        for step in range(1, 5):
            await store.append(attempt_spans(f"a{step}"))
            await take(store, step, [f"a{step}"])
            await store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, step))
        await long_ago(store, 2)
        store.retention.repeatable_from = lambda _: {}
        await swept(store)
        assert await store.without_batch("p", range(1, 5)) == []
        store.retention.repeatable_from = lambda _: {"p": 3}
        await swept(store)
        assert await store.without_batch("p", range(1, 5)) == [1, 2, 3]


@pytest.mark.parametrize("wrong_ns", [-20 * 365 * _DAY_NS, 20 * 365 * _DAY_NS])
async def test_a_version_of_a_clock_that_was_wrong_takes_no_batches_with_it(make_store, wrong_ns):
    now_ns = time.time_ns()
    async with make_store(limits(retention_time="30d")) as store:
        for step, made_ns in enumerate((-50 * _DAY_NS, -49 * _DAY_NS, -_DAY_NS, wrong_ns, -1), start=1):
            await store.append(attempt_spans(f"a{step}"))
            await take(store, step, [f"a{step}"])
            await store.put_version(PolicyVersion("p", step, step, VersionState.LIVE, now_ns + made_ns))
        store.retention.repeatable_from = lambda _: {"p": 5}
        await swept(store)
        assert await store.without_batch("p", range(1, 6)) == [1, 2]


@pytest.mark.long
async def test_each_turn_is_short_and_writers_get_between_them(tmp_path, monkeypatch):
    async with SqliteStore(tmp_path / "s.sqlite", limits(retention_time="60s")) as store:
        store.retention.wanted_by = tuple
        for number in range(300):
            await store.append(attempt_spans(f"a{number}", calls=20, text=200))
        await long_ago(store, 2)
        await store.append(attempt_spans("new"))
        turns: list[float] = []
        # What a fast machine deletes in one turn of the usual length takes several short ones.
        monkeypatch.setattr(retention, "_BUDGET_S", 0.01)
        turn = store.retention.sweep

        def timed(connection):
            began = time.monotonic()
            try:
                return turn(connection)
            finally:
                turns.append(time.monotonic() - began)

        monkeypatch.setattr(type(store.retention), "sweep", lambda self, connection: timed(connection))
        sweeping = asyncio.create_task(keep_within_limits(store, every_s=60))
        async with asyncio.timeout(60):
            while (await store.counts())["spans"] > 4:
                await asyncio.sleep(0.01)
        sweeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sweeping
        assert len(turns) > 1
        assert sorted(turns)[len(turns) // 2] < 1.0


async def test_a_limit_that_cannot_be_looked_after_stops_no_writer(make_store, caplog):
    def unreadable(connection: Connection) -> dict[str, int]:
        raise PermissionError(13, "Permission denied", "checkpoints")

    async with make_store(limits(retention_size="16MiB")) as store:
        store.retention.wanted_by, store.retention.repeatable_from = tuple, unreadable
        async with asyncio.timeout(60):
            for number in range(40):
                await store.append(attempt_spans(f"a{number}", calls=20, text=20_000))
        assert (await store.counts())["spans"] == 840
    assert "the work after a commit failed" in caplog.text


async def test_free_pages_are_given_back_as_many_as_are_asked_for(tmp_path):
    path = tmp_path / "s.sqlite"
    async with SqliteStore(path, limits(retention_time="60s")) as store:
        for number in range(20):
            await store.append(attempt_spans(f"a{number}", calls=20, text=20_000))
        await long_ago(store, 2)
        await swept(store)
        before = await store.write(lambda connection: measure(connection, path))
        await store.write(lambda connection: give_back(connection, 100))
        after = await store.write(lambda connection: measure(connection, path))
    assert before.free > 100 * 8192
    assert before.file - after.file == 100 * 8192


async def test_numbers_of_spans_only_grow_even_when_all_are_too_old(make_store):
    async with make_store(limits(retention_time="60s")) as store:
        for name in ("a", "b"):
            await store.append(attempt_spans(name))
        last = await store.last_span()
        await long_ago(store, 2)
        await swept(store)
        await store.append(attempt_spans("c"))
        assert await store.last_span() == last + 4


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"retention_time": "30 parsecs"}, 'write a number with its unit, like "30d"'),
        ({"retention_size": 20}, 'write a number with its unit, like "20GiB"'),
        ({"retention_size": "1KB"}, "greater than or equal to 16777216"),
        ({"retention_steps": 0}, "greater than or equal to 1"),
    ],
)
def test_a_limit_that_is_none_is_refused_in_a_sentence(setting, sentence):
    with pytest.raises(ValidationError, match=sentence):
        StoreConfig.model_validate(setting)


def test_limits_have_units():
    config = StoreConfig.model_validate({"retention_time": "1.5d", "retention_size": "2GB"})
    assert (config.retention_time, config.retention_size) == (129600.0, 2e9)
    assert StoreConfig.model_validate({"retention_size": "none"}).retention_size is None
    assert sweep.RUNNING_FOR_NS == _DAY_NS
