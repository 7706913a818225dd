"""The name of a run: its group ids begin with it, so that no two runs of one daemon ever share a group.

The name follows from what is run, so a restarted run finds its groups again. It is held at the daemon during the run: a
second run of the same thing gets the next number (``name-2``), and if both are interrupted, both names are free again.
"""

import functools
import hashlib
import http.client
import itertools
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning_instrumentation.access.proof import Access, authorization
from lightning_instrumentation.access.tls import TlsError, ca_file_of_environment

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.daemon_client import COME_AGAIN, refusal

_LONGEST = 120
_NAME = re.compile(rf"[^\s/]{{1,{_LONGEST}}}")
_SILENCE_S = 60.0
"""The daemon sends a line every ten seconds; after this long without one, the connection counts as lost."""
_AGAIN_S = 0.5
_NOTEBOOK_OF_VS_CODE = "__vsc_ipynb_file__"
"""A variable of the notebook itself, with its path."""
_NOTEBOOK_OF_JUPYTER = "JPY_SESSION_NAME"
"""An environment variable of the kernel, and of all that it starts, with the notebook's path."""

_log = logging.getLogger(__name__)


def checked_run(name: str) -> str:
    """Return the name if it can be part of a group id.

    Raises:
        LightningError: it cannot.
    """
    if not _NAME.fullmatch(name):
        raise LightningError(
            f"the run is called {name!r}; give it 1 to {_LONGEST} characters without white space and slashes"
        )
    return name


def default_run(policies: Sequence[str], attempt: Callable[..., Any]) -> str:
    """Return a name that is the same whenever this program is started, and different for another program."""
    return _short(f"{'+'.join(policies)}:{attempt_label(attempt)}")


def command_label(command: Sequence[str], *rest: object) -> str:
    """Return a command's part of a run's name, with anything else that distinguishes its runs."""
    return ":".join([" ".join([Path(command[0]).name, *command[1:]]), *map(str, rest)])


def attempt_label(attempt: Callable[..., Any]) -> str:
    """Return a function's part of a run's name: its ``run_label``, else its own name and its module's or program's."""
    label = getattr(attempt, "run_label", None)
    if isinstance(label, str):
        return label
    while isinstance(attempt, functools.partial):
        attempt = attempt.func
    named = attempt if hasattr(attempt, "__qualname__") else type(attempt)
    module = named.__module__
    if module == "__main__":
        module = _program()
    return f"{module}.{named.__qualname__.replace('.<locals>', '')}"


def _program() -> str:
    """Return a unique name for the script or notebook that runs as ``__main__``: ``train.py`` may be in several
    folders, and one script runs all notebooks of a machine. A program that is in no file is named by its folder."""
    main = sys.modules["__main__"]
    script = getattr(main, "__file__", None)
    if script is not None:
        name, path = Path(sys.argv[0]).stem, Path(script)
    else:
        path = Path(getattr(main, _NOTEBOOK_OF_VS_CODE, None) or os.environ.get(_NOTEBOOK_OF_JUPYTER) or "").absolute()
        name = path.stem
    return f"{name or 'main'}@{hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:8]}"


def _short(name: str) -> str:
    """Return the text as a name, with a digest if characters had to be removed."""
    plain = re.sub(r"[^\w.:+@-]+", "_", name)
    if len(plain) <= _LONGEST - 8:  # leaves room for a number
        return plain
    return f"{plain[: _LONGEST - 20]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


@contextmanager
def held_run(
    endpoint: str,
    name: str,
    *,
    token: str | None,
    ca_file: Path | None = None,
    numbered: bool,
    patience_s: float = 300.0,
) -> Iterator[str]:
    """Hold the name inside the block; if ``numbered``, the first of ``name``, ``name-2`` ... that is free.

    Args:
        ca_file: as for ``DaemonClient``.
        patience_s: how long to wait for an unreachable daemon.

    Raises:
        LightningError: another process holds it, or the daemon cannot be reached.
    """
    candidates = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
    give_up = time.monotonic() + patience_s
    candidate = next(candidates)
    while True:
        try:
            hold = _Hold(endpoint, candidate, token, ca_file)
            break
        except _HeldError:
            if not numbered:
                raise LightningError(
                    f"the run {name!r} is going on in another process; wait for its end, or give this one a name of "
                    'its own: Runner(..., run="NAME"), or rollouts --run NAME'
                ) from None
            candidate = next(candidates)
        except TlsError as error:
            raise LightningError(str(error)) from error
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() > give_up:
                raise LightningError(f"the daemon at {endpoint} cannot be asked for the run's name: {error}") from error
            time.sleep(_AGAIN_S)
    try:
        yield candidate
    finally:
        hold.end()


class _HeldError(Exception):
    """Another process holds the name."""


class _Hold:
    """A held name: an open connection, and a thread that reopens it after a restart of the daemon."""

    def __init__(self, endpoint: str, name: str, token: str | None, ca_file: Path | None) -> None:
        parts = urllib.parse.urlsplit(endpoint)
        holder = secrets.token_hex(16)  # the same for every connection: the next may be to another daemon of the store
        self._path = f"{parts.path.rstrip('/')}/lightning/runs/{urllib.parse.quote(name, safe='')}/hold?holder={holder}"
        self._url = f"{endpoint.rstrip('/')}/lightning/runs"
        self._access = Access(endpoint, token, ca_file=ca_file or ca_file_of_environment())
        self._name = name
        self._ended = threading.Event()
        self._socket: socket.socket | None = None
        self._connection, response = self._open()
        threading.Thread(target=self._listen, args=(response,), name=f"run {name}", daemon=True).start()

    def end(self) -> None:
        """Release the name."""
        self._ended.set()
        # Closing alone would wait for the thread, which is reading.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _open(self) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection, token = self._access.open(_SILENCE_S)
        try:
            connection.request("GET", self._path, headers=authorization(token))
            self._socket = connection.sock
            response = connection.getresponse()
            if response.status == 409:
                raise _HeldError
            if response.status != 200:
                said = refusal(self._url, response.status, response.read(65536))
                if response.status in COME_AGAIN:
                    raise ConnectionError(said)
                raise LightningError(f"the run {self._name!r} cannot begin: {said}")
        except BaseException:
            connection.close()
            raise
        return connection, response

    def _listen(self, response: http.client.HTTPResponse) -> None:
        told = False
        while True:
            with suppress(OSError, http.client.HTTPException):
                while not self._ended.is_set() and response.readline():
                    pass
            response.close()
            self._connection.close()
            if self._ended.wait(_AGAIN_S):
                return
            try:
                self._connection, response = self._open()
                told = False
            except (_HeldError, LightningError, OSError, http.client.HTTPException) as error:
                if isinstance(error, _HeldError) and not told:
                    told = True
                    _log.warning("another process took the name of the run %r while the daemon was away", self._name)
