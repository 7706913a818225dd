"""What is PostgreSQL's alone: what goes wrong is one sentence without the password, and a restart loses nothing."""

import asyncio
import contextlib
import logging
import os
import random
import signal
import subprocess
from collections.abc import Callable, Iterator

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import MalformedTelemetryError, StoreError, UnusableStoreError
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.error_messages import shown, without_password
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.retention.retention import StoreSize
from lightning_trainer.store.retention.sweep import delete_rows


async def _refused(url: str) -> str:
    with pytest.raises(StoreError) as raised:
        await PostgresStore(url).open()
    said = str(raised.value)
    assert "\n" not in said
    return said


async def test_a_wrong_password_is_one_sentence_without_it(postgres) -> None:
    said = await _refused(postgres.url(password="s3cret-wrong"))
    assert "password authentication failed" in said
    assert "check [store] url" in said
    assert "s3cret" not in said


async def test_a_server_that_is_not_there_is_one_sentence() -> None:
    said = await _refused("postgresql://me:s3cret@127.0.0.1:1/nowhere")
    assert "the store postgresql://me@127.0.0.1:1/nowhere cannot be reached" in said
    assert "s3cret" not in said


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@[nonsense/x", "postgresql://me:s3cret@h:port/x", "postgresql://me:s3%zzcret@h/x"]
)
async def test_a_url_that_is_none_is_one_sentence_without_its_password(url: str) -> None:
    assert "s3" not in await _refused(url)


def test_a_password_is_taken_out_however_it_is_written() -> None:
    url = "postgresql://me:p%40ss@h/d?password=other"
    assert shown(url) == "postgresql://me@h/d"
    assert without_password(f"no: {url}, p@ss, other", url) == "no: postgresql://me:***@h/d?password=***, ***, ***"


async def test_a_schema_from_the_future_is_refused(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as store:
        await store.write(lambda connection: connection.execute("INSERT INTO lightning_schema VALUES (?)", (99,)))
    with pytest.raises(UnusableStoreError, match="has schema 99, this lightning-trainer knows up to"):
        await PostgresStore(postgres_url).open()


async def test_daemons_that_start_together_make_the_tables_once(postgres_url: str, make_span) -> None:
    stores = [PostgresStore(postgres_url) for _ in range(4)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        sent = [make_span(n, trace=1 + n // 10) for n in range(1, 200)]
        new = await asyncio.gather(*(store.append(sent[:: n + 1]) for n, store in enumerate(stores)))
        assert sum(new) == len(sent)
        assert (await stores[0].counts())["spans"] == len(sent)
        assert await stores[1].spans_of_trace(sent[0].trace_id) == await stores[2].spans_of_trace(sent[0].trace_id)
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
async def test_what_was_acknowledged_is_there_after_the_server_was_restarted(
    postgres, postgres_url: str, make_span, how: signal.Signals, caplog
) -> None:
    caplog.set_level(logging.CRITICAL)
    async with PostgresStore(postgres_url) as store:
        await store.append([make_span(1)])
        assert (await store.counts())["spans"] == 1
        postgres.stop(how)
        with pytest.raises(StoreError, match="cannot be reached"):
            await store.append([make_span(2)])
        with pytest.raises(StoreError):
            await store.counts()
        postgres.start()
        assert await store.append([make_span(1), make_span(2)]) == 1
        assert (await store.counts())["spans"] == 2


async def test_a_character_0_is_kept_in_the_span_and_stands_for_itself_in_names(postgres_url: str, make_root) -> None:
    async with PostgresStore(postgres_url) as store:
        root = make_root(1, "a\0b")
        assert await store.append([root]) == 1
        assert await store.append([root]) == 0
        (attempt,) = await store.attempts()
        (span,) = await store.spans_of_attempts([attempt.attempt_id])
        assert span.attributes[semconv.ATTEMPT_ID] == "a\0b"


async def test_a_daemon_that_stops_with_the_lock_in_its_hand_loses_it(
    postgres_url: str, make_span, monkeypatch
) -> None:
    async with PostgresStore(postgres_url) as store:
        silent = PostgresConnection(postgres_url, silence_s=1)
        silent.execute("BEGIN IMMEDIATE")
        async with asyncio.timeout(20):
            assert await store.append([make_span(1)]) == 1
        with pytest.raises(StoreError):
            silent.execute("COMMIT")
        silent.close()


async def test_an_id_that_no_index_holds_is_refused_for_good_and_alone(postgres_url: str, make_root) -> None:
    long = "".join(random.Random(1).choices("0123456789abcdef", k=20_000))
    async with PostgresStore(postgres_url) as store:
        results = await asyncio.gather(
            store.append([make_root(1, long)]), store.append([make_root(2, "short")]), return_exceptions=True
        )
        assert isinstance(results[0], MalformedTelemetryError)
        assert results[1] == 1


async def test_a_full_disk_is_one_sentence_and_what_comes_later_is_stored(postgres, make_span, caplog) -> None:
    caplog.set_level(logging.CRITICAL)
    with small_disk(postgres) as (url, room):
        async with PostgresStore(url) as store:
            stored = 0

            async def fill() -> None:
                nonlocal stored
                while stored < 100:
                    long = {"x": "y" * 20_000}
                    await store.append([make_span(n, trace=stored + 1, attributes=long) for n in range(1, 30)])
                    stored += 1

            with pytest.raises(StoreError, match="the disk of the PostgreSQL server is full") as raised:
                await fill()
            assert "\n" not in str(raised.value)
            assert (await store.counts())["spans"] == 29 * stored
            room()
            assert await store.append([make_span(1, trace=500)]) == 1


@contextlib.contextmanager
def small_disk(postgres) -> Iterator[tuple[str, Callable[[], object]]]:
    """A schema whose tables lie on a disk of 24 MiB; and what makes it larger."""
    folder = postgres.folder / "small"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", f"size=24m,mode=700,uid={postgres.folder.stat().st_uid}", "small"]
    if os.geteuid() or subprocess.run([*mounted, str(folder)], capture_output=True).returncode:
        pytest.skip("only root can mount a small disk")
    try:
        postgres.execute(f"CREATE TABLESPACE small LOCATION '{folder}'", "CREATE SCHEMA small")
        yield (
            postgres.url("small") + "%20-cdefault_tablespace%3Dsmall",
            lambda: subprocess.run(["mount", "-o", "remount,size=200m", str(folder)], check=True),
        )
        postgres.execute("DROP SCHEMA small CASCADE", "DROP TABLESPACE small")
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def _filled(url: str, make_span, numbers: range, text: str = "") -> StoreSize:
    """Append spans, with a restart before and one after; return the size that the store has then."""
    async with PostgresStore(url) as store:
        await store.append([make_span(n, trace=n, attributes={"text": f"{n}{text}"}) for n in numbers])
    async with PostgresStore(url) as store:
        return store.retention.size


async def test_a_restart_finds_the_space_that_deleted_spans_left(postgres_url: str, make_span) -> None:
    full = await _filled(postgres_url, make_span, range(1, 6001), "x" * 500)
    async with PostgresStore(postgres_url) as store:
        seqs = [seq for (seq,) in await store.scan(lambda connection: connection.execute("SELECT seq FROM spans"))]
        await store.write(lambda connection: delete_rows(connection, seqs[:3000]))
    for _ in range(3):
        async with PostgresStore(postgres_url) as store:
            assert store.retention.size.file == pytest.approx(full.file, rel=0.1)
            assert store.retention.size.used == pytest.approx(full.used / 2, rel=0.1)


async def test_a_character_0_is_found_again_beside_its_own_escape(postgres_url: str, make_root) -> None:
    for number, name in enumerate(("a\0b", "a\0\\u0000b", "a\\\0b"), start=1):
        async with PostgresStore(postgres_url) as store:
            span = make_root(number, name)
            await store.append([span])
            assert await store.spans_of_attempts([name]) == [span]


async def test_spans_that_become_larger_are_not_taken_for_small_ones(postgres_url: str, make_span) -> None:
    await _filled(postgres_url, make_span, range(1, 4001))
    large = await _filled(postgres_url, make_span, range(4001, 4501), os.urandom(20_000).hex())
    assert large.used > 0.75 * large.file


async def test_the_first_daemons_id_is_that_of_all(postgres_url: str) -> None:
    async with PostgresStore(postgres_url) as one, PostgresStore(postgres_url) as other:
        agreed = await asyncio.gather(one.daemon_id("a" * 32), other.daemon_id("b" * 32))
        assert agreed[0] == agreed[1]
        assert await other.daemon_id("c" * 32) == agreed[0]
