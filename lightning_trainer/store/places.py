"""The location of a configuration's store: a file in the state folder, or a PostgreSQL server."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from lightning_trainer.config import Config
from lightning_trainer.config.store import StoreConfig
from lightning_trainer.errors import StoreError
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.error_messages import shown
from lightning_trainer.store.postgres.schema import newest_version, version_of
from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.store import Store
from lightning_trainer.store.upkeep.files import STORE


@dataclass(frozen=True, slots=True)
class StorePlace:
    """The location of a store. As text, which is for display, it is a path, or a URL without its password."""

    path: Path | None
    url: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return str(self.path) if self.url is None else shown(self.url)


def place_of(config: Config, state_dir: Path | None = None) -> StorePlace:
    """Return the location of a configuration's store; with ``state_dir``, that of the file in that folder."""
    if config.store.url is not None and state_dir is None:
        return StorePlace(None, config.store.url.get_secret_value())
    return StorePlace((state_dir or config.daemon.state_dir) / STORE)


def recorded_place(config: Config) -> StorePlace:
    """Return the location of a configuration's store.

    Raises:
        StoreError: nothing has been recorded there yet.
    """
    place = place_of(config)
    if place.path is not None and not place.path.is_file():
        raise StoreError(f"there is no store {place}: nothing was recorded here yet")
    return place


def store_at(place: StorePlace, limits: StoreConfig) -> Store:
    """Return the store at a location, not yet opened."""
    if place.path is not None:
        return SqliteStore(place.path, limits)
    assert place.url is not None
    return PostgresStore(place.url, limits)


@contextmanager
def reading(place: StorePlace, *, outdated: bool = False) -> Iterator[Connection]:
    """Open a store for reading one snapshot, whether or not daemons have it open.

    Args:
        outdated: whether a store of an earlier schema may be read too, in PostgreSQL.

    Raises:
        StoreError: there is none, it cannot be read, or a newer lightning-trainer wrote it.
    """
    if place.path is not None:
        with read_only(place.path) as connection:
            yield connection
        return
    assert place.url is not None
    with closing(PostgresConnection(place.url, silence_s=None)) as connection:
        connection.execute("BEGIN")
        if (found := version_of(connection)) < newest_version() and not outdated:
            raise StoreError(
                f"the store {place} has schema {found}, this lightning-trainer reads {newest_version()}: "
                "`lightning-trainer serve` makes it and brings it up to date"
            )
        yield connection
