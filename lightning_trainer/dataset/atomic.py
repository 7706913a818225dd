"""Atomic writes: a file is written next to its place, made durable, then renamed, so it is complete or absent."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lightning_trainer.errors import DatasetError


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a path to write to, whose file replaces the target at the end; after a failure nothing of it is left.

    Raises:
        DatasetError: the folder cannot be written to.
    """
    aside = target.with_name(f".{target.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        yield aside
        with aside.open("r+b") as written:  # for writing, too: otherwise Windows refuses to fsync
            os.fsync(written.fileno())
        aside.replace(target)
    except OSError as error:
        raise DatasetError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            aside.unlink()
