"""The programs that hold the agent's spans: killed, stopped, and started again; nothing that they kept may be lost."""

import base64
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from lightning_instrumentation.delivery.segment import SUFFIX

from benchmarks.hostile.chaos.recorded import Message


class Writer:
    """One process of ``writer.py``."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("writer.py"))],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.kept: set[int] = set()
        """Numbers of the messages that it reported as kept."""
        self.given: set[int] = set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def give(self, number: int, message: Message) -> None:
        self.given.add(number)
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(f"{number} {base64.b64encode(message.body).decode()}\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it is dead: the message is given to another one

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.kept.add(int(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()


class Writers:
    """Several writers; a dead one is replaced, and the new one is given what the dead one had not kept."""

    def __init__(self, environment: Mapping[str, str], folder: Path, rng: random.Random, count: int = 2) -> None:
        self._environment, self._log, self._rng = environment, folder / "writers.log", rng
        self._spool = folder / "spool"
        self.writers = [self._new() for _ in range(count)]
        self.messages: dict[int, Message] = {}
        self.kept: set[int] = set()

    def _new(self) -> Writer:
        return Writer(self._environment, self._log)

    def give(self, message: Message) -> None:
        number = len(self.messages)
        self.messages[number] = message
        self._rng.choice(self.writers).give(number, message)

    @property
    def all_kept(self) -> bool:
        """Whether a writer has kept each message; also replaces dead writers and gives on what they had not kept."""
        for at, writer in enumerate(self.writers):
            self.kept |= writer.kept
            if writer.process.poll() is not None:
                writer.kill()
                self.kept |= writer.kept
                self.writers[at] = self._new()
                for number in sorted(writer.given - writer.kept):
                    self.writers[at].give(number, self.messages[number])
        return len(self.kept) == len(self.messages)

    def kill_with_damage(self) -> bool:
        """Stop a writer, flip a byte in what it had kept but not delivered, and kill it; False if there was nothing.

        What a damaged spool held is not promised: those messages are given again.
        """
        writer = self._rng.choice(self.writers)
        if writer.process.poll() is not None:
            return False  # dead already, and not yet started again
        os.kill(writer.process.pid, signal.SIGSTOP)
        files = [file for file in self._spool.rglob(f"*{SUFFIX}") if file.name.startswith(f"{writer.process.pid}-")]
        damaged = [file for file in files if _flip(file, self._rng)]
        writer.kill()
        if damaged:
            self.kept -= writer.given
            writer.kept.clear()
        return bool(damaged)

    def stop(self) -> None:
        for writer in self.writers:
            writer.process.send_signal(signal.SIGCONT)
            if writer.process.stdin is not None:
                writer.process.stdin.close()
        deadline = time.monotonic() + 60
        for writer in self.writers:
            try:
                writer.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                writer.kill()


def _flip(file: Path, rng: random.Random) -> bool:
    head = 24
    with file.open("r+b") as opened:
        content = opened.read()
        if len(content) <= head:
            return False
        at = rng.randrange(head, len(content))
        opened.seek(at)
        opened.write(bytes([content[at] ^ (1 << rng.randrange(8))]))
    return True
