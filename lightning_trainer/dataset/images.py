"""Images and other media that samples refer to: which of them the sources have, and their bytes next to the file."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.dataset.atomic import replacing
from lightning_trainer.store.media.exchange import SCHEME
from lightning_trainer.store.media.table import digests_of, select, select_kept
from lightning_trainer.store.places import StorePlace, reading
from lightning_trainer.types import Media


@dataclass(frozen=True, slots=True)
class Images:
    """The sources of the bytes to which prompts refer by hash."""

    embedded: Mapping[str, bytes]
    """The bytes that were in the spans of a file, by hash."""
    stores: Sequence[StorePlace]

    def kept(self, media: Iterable[Media]) -> frozenset[str]:
        """Return the addresses whose bytes a source has.

        Raises:
            StoreError: a store cannot be read.
        """
        asked = digests_of(media)
        found = self.embedded.keys() & asked
        for store in self.stores if asked else ():
            with reading(store) as connection:
                found |= select_kept(connection, asked)
        return frozenset(f"{SCHEME}{digest}" for digest in found)

    def write(self, media: Iterable[Media], folder: Path) -> int:
        """Write the bytes into a folder, each to a file that is named by their hash; return how many files there are.

        Raises:
            DatasetError: the folder cannot be written to.
            StoreError: a store cannot be read.
        """
        asked = digests_of(media)
        written = {digest for digest in asked if digest in self.embedded}
        for digest in written:
            _write(self.embedded[digest], folder / digest)
        for store in self.stores if asked else ():
            with reading(store) as connection:
                for digest in asked:
                    if digest not in written and (found := select(connection, [digest]).get(digest)) is not None:
                        _write(found.body, folder / digest)
                        written.add(digest)
        return len(written)


def _write(body: bytes, path: Path) -> None:
    with replacing(path) as aside:
        aside.write_bytes(body)
