"""A connection to PostgreSQL with the interface of sqlite3's. It translates the store's queries into PostgreSQL's SQL:
the placeholders, the way to read a list, and the few queries that differ.

Every error is a ``StoreError`` of one sentence, without the password. The next transaction reopens a broken connection;
what the broken one had not committed fails, and is never repeated automatically.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lightning_trainer.errors import MissingExtraError, StoreError
from lightning_trainer.store.postgres.error_messages import failure, shown
from lightning_trainer.store.tables.spans import INSERT, SELECT_RESOURCE

if TYPE_CHECKING:
    import psycopg


_CONNECT_S = 10
_LOCK_TIMEOUT_S = 30
_SILENCE_S = 15.0
_CLOSED_S = 2.0
"""How long the server may take to notice that a connection was closed."""
_FETCHED = 500
_USERS = "hashtext('lightning-trainer connections'), hashtext(current_schema())"
"""The advisory lock that connections to a store share, so that one can find out whether it is the only one."""
_NUL = "\u2400"
"""Replaces character 0, which PostgreSQL's texts cannot hold; the bytes of spans are unchanged."""
_ESCAPED_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
"""An escaped character 0, but not the letters ``u0000`` after an escaped backslash."""


class PostgresConnection:
    """A connection that is made at the first transaction, for use by one thread at a time."""

    def __init__(self, url: str, *, silence_s: float | None = _SILENCE_S) -> None:
        """Set the connection up; its first transaction connects.

        Args:
            silence_s: if a client is silent for this long in the middle of a transaction, because its process was
                stopped or its network is gone, it loses the transaction and its lock. None: never; for a reader, which
                blocks no other client.
        """
        self.url = url
        self._silence_s = silence_s
        self._raw: psycopg.Connection | None = None
        self._streams = 0
        self._alone = False
        """Whether this connection excludes others."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction has begun and not ended."""
        from psycopg.pq import TransactionStatus

        idle = (TransactionStatus.IDLE, TransactionStatus.UNKNOWN)
        return self._raw is not None and not self._raw.closed and self._raw.info.transaction_status not in idle

    def execute(self, sql: str, parameters: Any = (), /) -> Any:
        """Run a statement; ``translated`` says what it may contain."""
        match sql:
            case "BEGIN" | "BEGIN IMMEDIATE":
                return self._begin(immediate=sql != "BEGIN")
            case "COMMIT":
                return self._commit()
        if isinstance(parameters, Mapping):
            given: Any = {name: _plain(value) for name, value in parameters.items()}
        elif numbered(sql):
            given = {f"p{place}": _plain(value) for place, value in enumerate(parameters, start=1)}
        else:
            given = [_plain(value) for value in parameters]
        return self._run(translated(sql), given)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:
        """Run a statement for each of many rows."""
        import psycopg

        given = [[_plain(value) for value in row] for row in rows]
        if not given:
            return _NOTHING
        raw = self._connected()
        cursor = psycopg.Cursor(raw)
        try:
            if (in_one := IN_ONE.get(sql)) is not None:
                return cursor.execute(in_one.encode(), [list(column) for column in zip(*given, strict=True)])
            if len(given) == 1:
                return self._run(translated(sql), given[0])
            cursor.executemany(translated(sql).encode(), given)
        except psycopg.Error as error:
            raise failure(error, self.url) from error
        return cursor

    def stream(self, sql: str, parameters: Sequence[Any] = ()) -> Iterator[Any]:
        """Run a query whose rows are fetched as they are asked for, inside a transaction."""
        import psycopg

        self._streams += 1
        name = f"lightning_{self._streams}"
        self._run(f"DECLARE {name} NO SCROLL CURSOR FOR {translated(sql)}", [_plain(value) for value in parameters])
        try:
            while rows := self._run(f"FETCH {_FETCHED} FROM {name}", ()).fetchall():
                yield from rows
        finally:
            if (
                self.in_transaction
                and self._connected().info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
            ):
                self._run(f"CLOSE {name}", ())

    def copy(self, table: str, columns: str, rows: Iterable[Sequence[Any]]) -> None:
        """Bulk-insert rows into a table, inside a transaction."""
        import psycopg

        try:
            with psycopg.Cursor(self._connected()).copy(f"COPY {table}({columns}) FROM STDIN".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
        except psycopg.Error as error:
            raise failure(error, self.url) from error

    def script(self, statements: str) -> None:
        """Run statements in PostgreSQL's own SQL, unchanged."""
        self._run(statements, ())

    def exclude_others(self) -> bool:
        """Refuse other connections to this store until this one is closed; return False if there are any already."""
        until = time.monotonic() + _CLOSED_S
        while not self._run(f"SELECT pg_try_advisory_lock({_USERS})", ()).fetchone()[0]:
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        self._alone = True
        return True

    def close(self) -> None:
        """Close the connection, after which another daemon may write."""
        if self._raw is not None:
            if self._alone:
                self._let_others_in(self._raw)
            self._raw.close()
            self._raw = None

    def _let_others_in(self, raw: psycopg.Connection) -> None:
        """Release the lock at once: the server would do so only some time after the connection was closed."""
        import psycopg

        self._alone = False
        with contextlib.suppress(psycopg.Error):  # raised in a transaction that failed
            raw.execute("SELECT pg_advisory_unlock_all()")

    def _begin(self, *, immediate: bool) -> Any:
        if not immediate:
            statement = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
        else:
            # One transaction at a time writes to a store, across all daemons: numbers increase in the order of commits.
            statement = "BEGIN; SELECT pg_advisory_xact_lock(hashtext('lightning-trainer'), hashtext(current_schema()))"
        was_connected = self._raw is not None and not self._raw.closed
        try:
            return self._run(statement, ())
        except StoreError:
            if not was_connected or self._raw is None or not self._raw.closed:
                raise
        # The server was restarted since the last transaction; this one has not sent anything yet.
        return self._run(statement, ())

    def _commit(self) -> Any:
        cursor = self._run("COMMIT", ())
        if cursor.statusmessage != "COMMIT":
            raise StoreError(f"the store {shown(self.url)} did not commit: a statement of the transaction had failed")
        return cursor

    def _run(self, statement: str, parameters: Any) -> Any:
        import psycopg

        raw = self._connected()
        try:
            return raw.execute(statement.encode(), parameters or None)
        except psycopg.Error as error:
            raise failure(error, self.url) from error

    def _connected(self) -> psycopg.Connection:
        if self._raw is None or self._raw.closed:
            self._raw = self._connect()
        return self._raw

    def _connect(self) -> psycopg.Connection:
        try:
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        except ImportError as error:
            raise MissingExtraError(
                "[store] url names a PostgreSQL server, and psycopg is not installed: "
                'pip install "lightning-trainer[postgres]"'
            ) from error
        settings = ["-csynchronous_commit=on", f"-clock_timeout={_LOCK_TIMEOUT_S}s"]
        if self._silence_s is not None:
            settings.append(f"-cidle_in_transaction_session_timeout={1000 * self._silence_s:.0f}ms")
        try:
            given = conninfo_to_dict(self.url)
            options = " ".join((str(given.get("options") or ""), *settings)).strip()
            raw = psycopg.connect(
                self.url,
                autocommit=True,
                cursor_factory=psycopg.ClientCursor,
                options=options,
                application_name=given.get("application_name") or "lightning-trainer",
                connect_timeout=int(given.get("connect_timeout") or _CONNECT_S),
                keepalives_idle=int(_SILENCE_S),
                keepalives_interval=5,
                keepalives_count=3,
                tcp_user_timeout=int(2000 * _SILENCE_S),
                client_encoding="utf8",
            )
            (shared,) = raw.execute(f"SELECT pg_try_advisory_lock_shared({_USERS})".encode()).fetchone() or (None,)
        except psycopg.Error as error:
            raise failure(error, self.url, connecting=True) from error
        if shared is False:  # None: the schema does not exist
            raw.close()
            raise StoreError(
                f"a backup is being put in place of the store {shown(self.url)}: start when that has ended"
            )
        raw.adapters.register_loader("numeric", _number_loader())
        return raw


class _Nothing:
    rowcount = 0


_NOTHING = _Nothing()


def _plain(value: Any) -> Any:
    """Return a value in PostgreSQL's form; in a JSON list, a character 0 is escaped."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str):
        if "\0" in value:
            value = value.replace("\0", _NUL)
        if "\\u0000" in value and value.startswith("["):
            value = _ESCAPED_NUL.sub(rf"\1{_NUL}", value)
    return value


def as_postgres_keeps(row: Sequence[Any]) -> tuple[Any, ...]:
    """Return a row as it would be read back."""
    return tuple(map(_plain, row))


def _number_loader() -> type:
    """Return the loader that makes sums of integers integers, as in SQLite."""
    from psycopg.adapt import Loader

    class NumberLoader(Loader):
        def load(self, data: Any) -> int | float:
            text = bytes(data).decode()
            return float(text) if "." in text or "N" in text else int(text)

    return NumberLoader


_TOKEN = re.compile(r"'(?:[^']|'')*'|\?(\d*)|(?<![:\w]):([a-z_]+)|%")
_LIST = re.compile(r"json_each\((%s|%\(\w+\)s)\)")
_OF_SPANS = "trace_id, span_id, parent_span_id, name, start_ns, end_ns, rollout_id, attempt_id, operation, response_id"
OVERRIDES = {
    # An index row is limited to 2.7 kB, and the attributes of a resource may be longer: the index has their digest.
    SELECT_RESOURCE: "SELECT id FROM resources WHERE sha256(body) = sha256(%s)",
}
IN_ONE = {
    # A thousand spans in one statement, as binary arrays: in text form, every byte would be escaped.
    INSERT: f"""INSERT INTO spans({_OF_SPANS}, scope, resource_id, body, checksum)
        SELECT * FROM unnest(%b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bigint[], %b::text[],
            %b::text[], %b::text[], %b::text[], %b::text[], %b::bigint[], %b::bytea[], %b::bigint[])
        ON CONFLICT (trace_id, span_id) DO NOTHING""",
}
"""Bulk statements that take a list for each column."""


@lru_cache(maxsize=1024)
def translated(sql: str) -> str:
    """Return one of the store's queries in PostgreSQL's SQL."""
    if sql in OVERRIDES:
        return OVERRIDES[sql]
    return _LIST.sub(r"json_array_elements_text((\1)::json) AS json_each(value)", _TOKEN.sub(_placeholder, sql))


def _placeholder(found: re.Match[str]) -> str:
    token, number, name = found[0], found[1], found[2]
    if name:
        return f"%({name})s"
    if number is not None:
        return f"%(p{number})s" if number else "%s"
    return token.replace("%", "%%")


def numbered(sql: str) -> bool:
    """Whether a query's parameters are numbered (``?1``)."""
    return "?1" in sql
