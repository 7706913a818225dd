"""Where ended spans go: into this process's spool, and from there to the daemon.

The file and the thread are created with the first span. A forked child gets its own. If the disk cannot be written,
spans wait in memory, which is limited and reported.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lightning_instrumentation.access.patience import monotonic
from lightning_instrumentation.access.proof import Access, owner_of_token
from lightning_instrumentation.delivery.memory import MemorySpool
from lightning_instrumentation.delivery.ownership import NoFileLocksError
from lightning_instrumentation.delivery.post import Poster
from lightning_instrumentation.delivery.sender import AnySpool, Sender
from lightning_instrumentation.delivery.spool import (
    Spool,
    endpoint_folder,
    folder_bytes,
    folders_of_tokens,
    orphans_in,
    owned_folders,
)
from lightning_instrumentation.failures import failures
from lightning_instrumentation.settings import Settings

_MEMORY_LIMIT_BYTES = 64 << 20
_AT_EXIT_S = 1.0
_STOP_AT_EXIT_S = 0.5
_MEASURE_EVERY_S = 10.0
_ADOPT_AT_ONCE = 16


class Outbox:
    """The spool and the sender of one process.

    Args:
        access: the access to the daemon; once that daemon is known, spans wait for it alone.
    """

    def __init__(self, settings: Settings, access: Access | None = None) -> None:
        self._settings = settings
        self._access = access or Access(settings.endpoint, settings.token, ca_file=settings.ca_file)
        self._folder = endpoint_folder(settings.spool_dir, settings.endpoint, self._access.daemon)
        self.when_idle: Callable[[], None] = lambda: None
        """Called by the sender's thread every few seconds while no span waits."""
        self._begin_afresh()

    def _begin_afresh(self) -> None:
        self._lock = threading.RLock()
        self._counting = threading.Lock()
        self._disk: Spool | None = None
        self._earlier: list[Spool] = []
        """Spools begun before the daemon was known."""
        self._memory: MemorySpool | None = None
        self._closed = False
        self._others_bytes = 0
        self._measure_at = 0.0
        self._waited_in_vain = False
        self.spans_started = 0
        self.dropped = 0
        self._running = False
        self._exiting = False
        self._held: list[AnySpool] = []
        self.sender = Sender(
            Poster(self._access),
            self._settings.endpoint,
            self._spools,
            self._orphans,
            lambda: self.when_idle(),
        )

    @property
    def waiting(self) -> int:
        """Return the number of this process's spans that the daemon has not accepted yet."""
        return sum(spool.rows for spool in self._spools())

    def started(self) -> None:
        """Count a span that begins."""
        with self._counting:
            self.spans_started += 1

    def put(self, body: bytes) -> None:
        """Keep one serialized span; return when it is on disk (or in memory, if the disk cannot be written)."""
        if self._closed:
            self._drop_after_shutdown()
            return
        if not self._running:
            if self._open(body):
                self.sender.wake()
                return
        elif self._disk is not None and self._access.daemon not in (None, self._disk.owner):
            self._go_over(self._disk)
        if self._keep(body) or (self._settings.spool_full == "block" and self._keep_when_there_is_room(body)):
            self.sender.wake()
        elif self._closed or not self._running:  # closed by another thread meanwhile
            self._drop_after_shutdown()
        else:
            self._drop(
                "spool-full",
                f"spans for {self._settings.endpoint} fill the spool in {self._folder} "
                f"({self._settings.spool_limit_bytes} bytes) and new ones are LOST; start the daemon to empty it",
            )
            self.sender.wake()

    def _drop_after_shutdown(self) -> None:
        self._drop("after-shutdown", "a span ended after lt.shutdown() and is lost")

    def _keep(self, body: bytes) -> bool:
        kept = self._put_on_disk(body) or self._put_in_memory(body)
        if kept:
            self._waited_in_vain = False
        return kept

    def _keep_when_there_is_room(self, body: bytes) -> bool:
        """Wait for room, at most ``spool_block_s``; after a failed wait, no span waits until one has found room."""
        deadline = monotonic() + (0.0 if self._waited_in_vain else self._settings.spool_block_s)
        while (left_s := deadline - monotonic()) > 0:
            if not self.sender.wait_for_round(left_s):
                break
            self._measure_at = 0.0
            if self._keep(body):
                return True
        self._waited_in_vain = True
        return False

    def flush(self, timeout_s: float) -> bool:
        """Wait until every span is delivered; return False if some still wait after ``timeout_s``."""
        return self.sender.flush(timeout_s) if self._running else True

    def close(self, timeout_s: float) -> None:
        """Deliver what can be delivered within ``timeout_s``, then stop; the rest stays on disk."""
        if self._running and not self._closed:
            self.sender.flush(timeout_s, patient=False)
        self._close_spools()

    def close_at_exit(self) -> None:
        """Deliver what can be delivered now; an unreachable daemon does not delay the program's end."""
        if self._running and not self._closed and self.waiting and self.sender.reachable is not False:
            self.sender.flush(_AT_EXIT_S, patient=False)
        self._close_spools(_STOP_AT_EXIT_S)  # a daemon that hangs must not hold up the exit: the spool keeps the spans
        # Another exit handler may still end a span: that span goes to a file that the next process finds.
        self._closed, self._running, self._exiting = False, False, True

    def before_fork(self) -> None:
        """Take all locks, so that the child gets no copy of a half-written file."""
        self._lock.acquire()
        self.sender.opening.acquire()
        self._held = [*self._spools(), *self.sender.adopted]
        for spool in self._held:
            spool.hold_still()

    def after_fork_in_parent(self) -> None:
        """Release what ``before_fork`` took."""
        held, self._held = self._held, []
        for spool in held:
            spool.go_on()
        self.sender.opening.release()
        self._lock.release()

    def after_fork_in_child(self) -> None:
        """Leave files, connection, and thread to the parent, and start over."""
        self.sender.leave_to_parent()
        for spool in self._held:
            spool.leave_to_parent()
        self._access = self._access.in_child()
        self._begin_afresh()

    def _open(self, first: bytes) -> bool:
        """Open the spool and keep the first span, under one lock, so that a close in between loses none; return whether
        it was kept."""
        with self._lock:
            if self._running or self._closed:
                return False
            try:
                self._folder = self._folder_now()
                self._disk = Spool.create(self._folder)
            except OSError as error:
                self._say_memory(error)
                self._memory = MemorySpool()
            self._running = True
            kept = self._keep(first)
            if not self._exiting:
                self.sender.start()
            return kept

    def _folder_now(self) -> Path:
        return endpoint_folder(self._settings.spool_dir, self._settings.endpoint, self._access.owner)

    def _go_over(self, before: Spool) -> None:
        """Switch to a spool for the daemon that is now known; spans from here on wait for it alone."""
        with self._lock:
            if self._disk is not before:
                return
            try:
                folder = self._folder_now()
                self._disk = Spool.create(folder)
            except OSError:
                return  # keep using the present file, and try again with the next span
            self._folder = folder
            self._earlier.append(before)

    def _put_on_disk(self, body: bytes) -> bool:
        spool = self._disk
        if spool is None:
            return False
        now = monotonic()
        if now >= self._measure_at:
            self._measure_at = now + _MEASURE_EVERY_S
            self._others_bytes = folder_bytes(self._folder, but=spool.path)
        if spool.bytes + self._others_bytes + len(body) > self._settings.spool_limit_bytes:
            return False
        try:
            spool.append(body)
        except OSError as error:
            self._say_memory(error)
            with self._lock:
                self._memory = self._memory or MemorySpool()
            return False
        return True

    def _put_in_memory(self, body: bytes) -> bool:
        spool = self._memory
        if spool is None or spool.bytes + len(body) > min(_MEMORY_LIMIT_BYTES, self._settings.spool_limit_bytes):
            return False
        spool.append(body)
        return True

    def _say_memory(self, error: Exception) -> None:
        if isinstance(error, NoFileLocksError):
            failures.say(
                "no-file-locks",
                "spans wait in memory, since Windows has none of the file locks that a spool needs; those that the "
                "daemon has not taken when this process ends are lost",
            )
            return
        failures.note(
            "spool-not-writable",
            f"spans cannot be kept in {self._folder}; they wait in memory and are lost when this process ends "
            "before the daemon takes them. Set LIGHTNING_SPOOL_DIR to a folder that can be written",
            error=error,
        )

    def _drop(self, reason: str, sentence: str) -> None:
        with self._lock:
            self.dropped += 1
        failures.note(reason, sentence)

    def _spools(self) -> Sequence[AnySpool]:
        return [spool for spool in (*self._earlier, self._disk, self._memory) if spool is not None]

    def _orphans(self) -> Sequence[Spool]:
        settings, access = self._settings, self._access
        owners, token = [None, access.owner], access.token
        if settings.token is not None and token is not None:
            owners.append(owner_of_token(token))
        folders = [endpoint_folder(settings.spool_dir, settings.endpoint, owner) for owner in owners]
        if token is not None and access.daemon is not None:  # without a token, any process could claim this id
            # Spans of processes that never met the daemon wait under its token.
            known = [access.daemon, owner_of_token(token)] if access.proven else [access.daemon]
            folders += owned_folders(settings.spool_dir, known)
        if access.proven:
            folders += folders_of_tokens(settings.spool_dir, settings.endpoint)
        return orphans_in(dict.fromkeys(folders), limit=_ADOPT_AT_ONCE)

    def _close_spools(self, within_s: float = 2.0) -> None:
        with self._lock:  # if another thread is opening the spools now, the sender starts before it is stopped
            self._closed = True
        self.sender.stop(within_s)
        with self._lock:
            for spool in self._spools():
                spool.close()
            self._disk = self._memory = None
            self._earlier = []
