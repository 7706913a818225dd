"""The faults of the chaos run: each does one thing to one part and returns which, or None if that part is not there."""

import os
import random
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.hostile.chaos.supervised import Supervised
from benchmarks.hostile.chaos.writers import Writers

_STATE_BYTES = 192 * 2**20
_PROCESSES = ("daemon", "engine", "trainer", "raylet", "gcs_server", "writer")
_SHORT_S = (1.0, 12.0)


class Disk:
    """The state folder as a small file system of its own, which can be filled; needs root."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        mount = ["mount", "-t", "tmpfs", "-o", f"size={_STATE_BYTES}", "tmpfs", str(folder)]
        self.mounted = os.geteuid() == 0 and subprocess.run(mount, capture_output=True).returncode == 0

    def fill(self) -> bool:
        if not self.mounted:
            return False
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (2**20, 2**12, 1):
                try:
                    while ballast.write(bytes(size)) == size:
                        pass
                except OSError:
                    continue
        return True

    def free(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "--lazy", str(self.folder)], check=False)


class Faults:
    """Faults, chosen by a seed; those that last end by themselves, on threads of their own."""

    def __init__(self, daemon: Supervised, writers: Writers, disk: Disk, rng: random.Random) -> None:
        self._daemon, self._writers, self._disk, self._rng = daemon, writers, disk, rng
        self._ending: list[threading.Timer] = []
        self._kinds: dict[str, tuple[Callable[[], str | None], float]] = {
            "kill -9": (lambda: self._signal(signal.SIGKILL), 0.4),
            "SIGTERM": (lambda: self._signal(signal.SIGTERM), 0.15),
            "SIGSTOP": (self._stop, 0.2),
            "SIGSTOP for ever": (self._hang, 0.03),
            "disk full": (self._fill, 0.07),
            "store locked": (self._lock, 0.07),
            "spool damaged": (self._damage_spool, 0.03),
            "write-ahead log torn": (self._tear_log, 0.025),
            "checkpoint damaged": (self._damage_checkpoint, 0.025),
        }

    def one(self) -> str:
        """Cause one fault and return what it was; another one is chosen if the first finds no target."""
        while True:
            weights = [weight for _, weight in self._kinds.values()]
            (kind,) = self._rng.choices(list(self._kinds), weights)
            whom = self._kinds[kind][0]()
            if whom is not None:
                return f"{kind}: {whom}"

    def end(self) -> None:
        """Wait until every fault that lasts has ended."""
        for timer in self._ending:
            timer.join()
        self._ending.clear()

    def _signal(self, number: int) -> str | None:
        what = self._rng.choice(_PROCESSES)
        return what if self._send(what, number) else None

    def _send(self, what: str, number: int) -> int | None:
        pid = self._rng.choice(self._writers.writers).process.pid if what == "writer" else self._daemon.pid_of(what)
        if pid is None:
            return None
        self._daemon.below()  # remember its processes: those that a dead daemon leaves behind are checked in the end
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return None
        return pid

    def _stop(self) -> str | None:
        what = self._rng.choice(_PROCESSES)
        pid = self._send(what, signal.SIGSTOP)
        if pid is None:
            return None
        self._after(self._rng.uniform(*_SHORT_S), lambda: _send_if_there(pid, signal.SIGCONT))
        return what

    def _hang(self) -> str | None:
        """Stop a process for ever: the daemon has to find out.

        The daemon itself is not among them: its supervisor's watchdog would find out.
        """
        what = self._rng.choice(("trainer", "raylet", "gcs_server", "engine"))
        return what if self._send(what, signal.SIGSTOP) else None

    def _fill(self) -> str | None:
        if not self._disk.fill():
            return None
        self._after(self._rng.uniform(*_SHORT_S), self._disk.free)
        return "state folder"

    def _lock(self) -> str | None:
        if not self._daemon.store.exists():
            return None
        locked_s, begun = self._rng.uniform(*_SHORT_S), threading.Event()

        def hold() -> None:
            try:
                other = sqlite3.connect(self._daemon.store, timeout=20, isolation_level=None)
                other.execute("BEGIN IMMEDIATE")
                begun.set()
                time.sleep(locked_s)
                other.execute("ROLLBACK")
                other.close()
            except sqlite3.Error:
                begun.set()

        self._after(0.0, hold)
        begun.wait(20)
        return "another writer's transaction"

    def _damage_spool(self) -> str | None:
        return "a record, its writer killed" if self._writers.kill_with_damage() else None

    def _tear_log(self) -> str | None:
        """Tear the log as a power cut does: there is rubbish behind the last commit when the daemon starts again."""
        if not self._send("daemon", signal.SIGKILL):
            return None
        log = self._daemon.store.with_name(self._daemon.store.name + "-wal")
        try:
            with log.open("ab") as opened:
                opened.write(self._rng.randbytes(self._rng.randrange(1, 8192)))
        except OSError:
            return "nothing could be written behind it"
        return "rubbish behind the last commit, the daemon killed"

    def _damage_checkpoint(self) -> str | None:
        checkpoints = self._daemon.folder / "state" / "checkpoints"
        files = [file for file in checkpoints.rglob("*.pt") if file.is_file() and ".partial" not in str(file)]
        if not files:
            return None
        file = self._rng.choice(sorted(files))
        try:
            with file.open("r+b") as opened:
                at = self._rng.randrange(max(1, file.stat().st_size))
                opened.seek(at)
                byte = opened.read(1)
                opened.seek(at)
                opened.write(bytes([byte[0] ^ 1]) if byte else b"x")
        except OSError:
            return None
        return "a bit of one, the trainer killed" if self._send("trainer", signal.SIGKILL) else "a bit of one"

    def _after(self, seconds: float, work: Callable[[], None]) -> None:
        timer = threading.Timer(seconds, work)
        timer.daemon = True
        timer.start()
        self._ending.append(timer)


def _send_if_there(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
