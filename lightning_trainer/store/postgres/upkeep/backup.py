"""Backup of a store on PostgreSQL: ``pg_dump`` and ``pg_restore``, plus checkpoints and weights of live versions.

Invariant: the password is on no command line. A restored store refuses every daemon that held a turn before: the tokens
of the restored store continue far above all earlier ones.
"""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.media.exchange import exchange
from lightning_trainer.store.media.storing import insert_with_media
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.error_messages import shown, without_password
from lightning_trainer.store.postgres.schema import TABLES, drop_later_tables, migrate, newest_version, version_of
from lightning_trainer.store.tables import feedback
from lightning_trainer.store.upkeep import journal as journal_files
from lightning_trainer.store.upkeep.backup import MANIFEST, Backup
from lightning_trainer.store.upkeep.checkpoints import (
    copied_beside,
    copy_weights,
    select_checksums,
    set_metrics_aside,
)
from lightning_trainer.store.upkeep.restore import Restored, read_manifest, replay_limits

DUMP = "lightning.dump"
_TOKENS = 10**9
"""Larger than the number of tokens any store has issued."""


def back_up(
    url: str,
    folder: Path,
    checkpoints: Mapping[str, Path],
    *,
    versions: Mapping[str, Path] = MappingProxyType({}),
    journal: Path | None = None,
) -> Backup:
    """Dump a store, while daemons may write, into a new folder.

    Args:
        checkpoints: the newest checkpoint of each policy, by the policy's name.
        versions: the weights of live versions that the checkpoints do not lead to, by policy.
        journal: the journal's folder, from which everything that the backup contains is deleted.

    Raises:
        StoreError: the folder already exists, ``pg_dump`` is missing, or it failed.
    """
    if folder.exists():
        raise StoreError(f"{folder} already exists: name a new folder, for example with the date in its name")
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    began_ns = time.time_ns()
    try:
        partial.mkdir(mode=0o700, parents=True)
        kept = copy_weights(partial, checkpoints, versions)
        with closing(PostgresConnection(url)) as connection:
            connection.execute("BEGIN")
            version = version_of(connection)
            schema, spans = connection.execute("SELECT current_schema(), (SELECT count(*) FROM spans)").fetchone()
        dump = partial / DUMP
        ours = [f"--table={_quoted(schema)}.{table}" for table in TABLES]
        _run(url, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", *ours, f"--file={dump}")
        manifest = {"at_ns": began_ns, "spans": spans, "checkpoints": kept, "schema": schema, "version": version}
        (partial / MANIFEST).write_text(json.dumps(manifest) + "\n")
        size = dump.stat().st_size
        partial.rename(folder)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise StoreError(f"{folder} cannot be written: {error.strerror or error}") from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    if journal is not None:
        journal_files.delete_before(journal, began_ns)
    return Backup(folder, began_ns, spans, size, kept)


def restore(
    url: str,
    backup: Path,
    shared_dir: Path,
    *,
    state_dir: Path | None = None,
    journal: Path | None = None,
    limits: StoreConfig | None = None,
) -> Restored:
    """Replace the database's contents with a backup, in one transaction; no daemon may be connected.

    Args:
        shared_dir: the folder of checkpoints and versions.
        state_dir: the folder of this machine's metrics files; by default the same.

    Raises:
        StoreError: it is not a backup of a PostgreSQL store, daemons are connected, a checkpoint cannot be copied, or
            ``pg_restore`` failed; then nothing has changed. If a later part fails, restoring again completes it, as the
            error says.
    """
    if not (backup / DUMP).is_file():
        raise StoreError(f"{backup} is not a backup of PostgreSQL: it has no {DUMP}, which `store backup` makes of one")
    made_of = read_manifest(backup)
    with closing(PostgresConnection(url)) as connection:
        schema = _checked_schema(connection, backup, made_of)
        if not connection.exclude_others():
            raise StoreError(f"connections of daemons are open to {shown(url)}: stop the daemons first")
        with copied_beside(backup, shared_dir) as put_weights:
            whole = ("--single-transaction", "--clean", "--if-exists", "--no-owner", "--no-privileges")
            _run(url, "pg_restore", *whole, "--exit-on-error", f"--schema={schema}", str(backup / DUMP))
            try:
                problems: list[str] = []
                stored, new = _brought_up_to_date(
                    connection, journal, problems, replay_limits(limits), made_of["at_ns"]
                )
                aside = put_weights(select_checksums(connection))
                set_metrics_aside(state_dir or shared_dir)
            except (OSError, StoreError) as error:
                raise StoreError(
                    f"{shown(url)} has the backup {backup}, and not yet all that belongs to it: restore it again "
                    f"({error})"
                ) from error
    return Restored(made_of["at_ns"], stored, new, None, aside, problems)


def _checked_schema(connection: PostgresConnection, backup: Path, made_of: Mapping[str, Any]) -> str:
    """Return the schema in use; raises StoreError if it is not the backup's, or if either has an unknown version."""
    (schema,) = connection.execute("SELECT current_schema()").fetchone()
    if schema != made_of.get("schema"):
        here = f"has {schema!r}:" if schema is not None else "has no such schema yet: CREATE SCHEMA, and"
        raise StoreError(
            f"the backup {backup} is of schema {made_of.get('schema')!r}, and {shown(connection.url)} {here} name that "
            "schema in [store] url (?options=-csearch_path%3D...)"
        )
    version_of(connection)
    if made_of.get("version", 0) > newest_version():
        raise StoreError(f"the backup {backup} cannot be read, a newer lightning-trainer made it: upgrade this one")
    return schema


def _brought_up_to_date(
    connection: PostgresConnection, journal: Path | None, problems: list[str], limits: StoreConfig, at_ns: int
) -> tuple[int, int]:
    """Migrate a restored database, end all turns, and add the journal; return how many spans the database then has, and
    how many of them the journal added."""
    new = 0
    drop_later_tables(connection)
    migrate(connection)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE leases SET until_ns = 0, token = token + ?", (_TOKENS,))
    earlier, _ = feedback.newest(connection)
    for spans in journal_files.read(journal, problems) if journal is not None else ():
        new += len(insert_with_media(connection, exchange(spans), limits))
    feedback.date_back(connection, earlier, at_ns)
    (stored,) = connection.execute("SELECT count(*) FROM spans").fetchone()
    connection.execute("COMMIT")
    return stored, new


def _run(url: str, program: str, *arguments: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise StoreError(
            f"{program} is not on PATH, and it backs up a store on PostgreSQL and restores it: install the server's "
            "client programs (apt-get install postgresql-client), or run it where they are"
        )
    command = [found, f"--dbname={_without_password(url)}", *arguments]
    done = subprocess.run(command, env=os.environ | _password(url), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = without_password(" ".join(done.stderr.split()), url)
        raise StoreError(f"{program} failed on the store {shown(url)}: {said}")
    return done.stdout


def _quoted(name: str) -> str:
    """Return a name quoted for ``pg_dump``, which would otherwise take it for a pattern."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _told(url: str) -> dict[str, Any]:
    from psycopg.conninfo import conninfo_to_dict

    return dict(conninfo_to_dict(url))


def _without_password(url: str) -> str:
    from psycopg.conninfo import make_conninfo

    return make_conninfo(**{name: value for name, value in _told(url).items() if name != "password"})


def _password(url: str) -> dict[str, str]:
    password = _told(url).get("password")
    return {} if password is None else {"PGPASSWORD": str(password)}
