"""The media table: bytes stored once by their hash, and their reference holders.

Invariant: bytes exist as long as a span or a step's batch refers to them, and are deleted in the transaction that
deletes the last such holder. The exception is retention: if it needs the room, it leaves dangling references.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lightning_trainer.config.store import StoreConfig
from lightning_trainer.store.connection import Connection, has_table
from lightning_trainer.store.media.exchange import SCHEME, Embedded
from lightning_trainer.store.tables import totals
from lightning_trainer.types import Media

COUNT, BYTES = "media", "media_bytes"
"""Names of the totals about media."""
_LOOKED_AT = 50
_log = logging.getLogger(__name__)

Wanted: TypeAlias = Callable[[Sequence[int]], bool]
"""Whether a step may still use one of some spans."""


@dataclass(frozen=True, slots=True)
class StoredMedia:
    """The media that a reference refers to."""

    mime_type: str
    """As the sender declared it."""
    body: bytes


def digest_of(uri: str) -> str | None:
    """Return the hash that a reference names; None if it is another kind of URI."""
    return uri.removeprefix(SCHEME) if uri.startswith(SCHEME) else None


def digests_of(media: Iterable[Media]) -> list[str]:
    """Return the distinct hashes that these references name."""
    return list(dict.fromkeys(digest for one in media if (digest := digest_of(one.uri)) is not None))


def put(connection: Connection, embedded: Embedded, limits: StoreConfig) -> None:
    """Store bytes within the limits, once; beyond them only the reference remains."""
    if connection.execute("SELECT 1 FROM media WHERE hash = ?", (embedded.digest,)).fetchone() is not None:
        return
    size = len(embedded.body)
    if (why := _refusal(connection, size, limits)) is not None:
        _log.warning("an image or the like of %d bytes (%s) is not kept: %s", size, embedded.mime_type, why)
        totals.add(connection, {f"{totals.DELETED}{COUNT}": 1})
        return
    connection.execute(
        "INSERT INTO media(hash, mime_type, size, body) VALUES (?, ?, ?, ?)",
        (embedded.digest, embedded.mime_type, size, embedded.body),
    )
    totals.add(connection, {COUNT: 1, BYTES: size})


def _refusal(connection: Connection, size: int, limits: StoreConfig) -> str | None:
    if limits.media_size_each is not None and size > limits.media_size_each:
        return f"it is larger than [store] media_size_each, {limits.media_size_each / 2**20:g} MiB"
    if limits.media_size is not None and held_bytes(connection) + size > limits.media_size:
        return f"what the store holds of them would pass [store] media_size, {limits.media_size / 2**20:g} MiB"
    return None


def held_bytes(connection: Connection) -> int:
    """Return the total size of the stored media in bytes."""
    row = connection.execute("SELECT value FROM totals WHERE name = ?", (BYTES,)).fetchone()
    return row[0] if row else 0


def of_span(seq: int) -> str:
    """Return a span's name as a holder of media."""
    return f"span/{seq}"


def of_step(policy: str, step: int) -> str:
    """Return the name of a step's batch as a holder of media."""
    return f"step/{step}/{policy}"


def use_in_step(connection: Connection, policy: str, step: int, digests: Collection[str]) -> None:
    """Register the batch of a step as a holder of media, which are then kept as long as the batch."""
    use(connection, of_step(policy, step), digests)


def use(connection: Connection, holder: str, digests: Collection[str]) -> None:
    """Register a holder of media."""
    connection.executemany(
        "INSERT INTO media_uses(holder, hash) VALUES (?, ?) ON CONFLICT DO NOTHING",
        [(holder, digest) for digest in digests],
    )


def release(connection: Connection, holders: Sequence[str]) -> None:
    """Remove deleted holders, and delete media without holders."""
    if not holders or connection.execute("SELECT 1 FROM media_uses LIMIT 1").fetchone() is None:
        return
    listed = (json.dumps(list(holders)),)
    of_holders = "holder IN (SELECT value FROM json_each(?))"
    rows = connection.execute(f"SELECT DISTINCT hash FROM media_uses WHERE {of_holders}", listed).fetchall()
    if not rows:
        return
    connection.execute(f"DELETE FROM media_uses WHERE {of_holders}", listed)
    left = connection.execute(
        """SELECT value FROM json_each(?) WHERE value NOT IN (SELECT hash FROM media_uses)""",
        (json.dumps([digest for (digest,) in rows]),),
    )
    _delete(connection, [digest for (digest,) in left.fetchall()])


def delete_oldest(connection: Connection, after: int, wanted: Wanted) -> tuple[int, int]:
    """Examine the first media after ``after`` and delete those that no step can use; references to them stay.

    Args:
        wanted: given the numbers of the spans that refer to one of them, tells whether a step may still use any span.

    Returns:
        The last one examined (0: there was none), and how many were deleted.
    """
    rows = connection.execute(
        "SELECT seq, hash FROM media WHERE seq > ? ORDER BY seq LIMIT ?", (after, _LOOKED_AT)
    ).fetchall()
    gone = [digest for _, digest in rows if not _is_wanted(connection, digest, wanted)]
    _delete(connection, gone)
    totals.add(connection, {f"{totals.DELETED}{COUNT}": len(gone)})
    return (rows[-1][0] if rows else 0), len(gone)


def _is_wanted(connection: Connection, digest: str, wanted: Wanted) -> bool:
    holders = [one for (one,) in connection.execute("SELECT holder FROM media_uses WHERE hash = ?", (digest,))]
    seqs = [int(one.partition("/")[2]) for one in holders if one.startswith("span/")]
    if len(seqs) < len(holders):
        return True  # a batch that may have to be repeated
    return wanted(seqs)


def _delete(connection: Connection, digests: Sequence[str]) -> None:
    if not digests:
        return
    listed = (json.dumps(list(digests)),)
    of_hashes = "hash IN (SELECT value FROM json_each(?))"
    (number, size) = connection.execute(
        f"SELECT count(*), coalesce(sum(size), 0) FROM media WHERE {of_hashes}", listed
    ).fetchone()
    connection.execute(f"DELETE FROM media WHERE {of_hashes}", listed)
    totals.add(connection, {COUNT: -number, BYTES: -size})


def select(connection: Connection, digests: Collection[str]) -> Mapping[str, StoredMedia]:
    """Return the stored media for some hashes, by hash."""
    if not digests or not has_table(connection, "media"):
        return {}
    rows = connection.execute(
        "SELECT hash, mime_type, body FROM media WHERE hash IN (SELECT value FROM json_each(?))",
        (json.dumps(list(digests)),),
    )
    return {digest: StoredMedia(mime_type, bytes(body)) for digest, mime_type, body in rows}


def select_kept(connection: Connection, digests: Collection[str]) -> frozenset[str]:
    """Return those of some hashes whose bytes are stored."""
    rows = connection.execute(
        "SELECT hash FROM media WHERE hash IN (SELECT value FROM json_each(?))", (json.dumps(list(digests)),)
    )
    return frozenset(digest for (digest,) in rows)
