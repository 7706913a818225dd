"""A private PostgreSQL server: in a temporary folder, on a free port of loopback, removed at the end."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import psycopg

_DEBIAN = Path("/usr/lib/postgresql")
_START_S = 60.0


def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs, the newest; None if it is not installed."""
    found = [Path(path).resolve().parent for path in [shutil.which("initdb")] if path]
    if _DEBIAN.is_dir():
        found += sorted((one / "bin" for one in _DEBIAN.iterdir()), key=lambda one: float(one.parent.name))
    return next((one for one in reversed(found) if (one / "initdb").exists() and (one / "postgres").exists()), None)


class PostgresServer:
    """A server; it refuses to run as root, so root starts it as ``postgres`` or, without such a user, as ``nobody``."""

    def __init__(self, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.password = secrets.token_hex(12)
        found = programs()
        assert found is not None
        self._programs = found
        self._settings = settings
        self._process: subprocess.Popen[Any] | None = None
        self.port = 0
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            entry = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            self._user = {"user": entry.pw_uid, "group": entry.pw_gid}
            os.chown(folder, entry.pw_uid, entry.pw_gid)

    def url(self, schema: str | None = None, *, password: str | None = None) -> str:
        """Return the URL of the server's database, or of a schema in it if one is named."""
        options = "" if schema is None else f"?options={quote(f'-csearch_path={schema}', safe='')}"
        return f"postgresql://lightning:{password or self.password}@127.0.0.1:{self.port}/postgres{options}"

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def make(self) -> None:
        password = self.folder / "password"
        password.write_text(self.password)
        if self._user:
            os.chown(password, self._user["user"], self._user["group"])
        unsynced = ["--no-sync"] if self._settings.get("fsync") == "off" else []
        self._run(
            *(
                "initdb",
                *unsynced,
                "--pgdata",
                str(self.folder / "data"),
                "--username",
                "lightning",
                "--encoding",
                "UTF8",
            ),
            *("--locale", "C.UTF-8", "--auth", "scram-sha-256", "--pwfile", str(password)),
        )

    def start(self) -> None:
        with socket.socket() as free:
            free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            free.bind(("127.0.0.1", self.port))
            self.port = free.getsockname()[1]
        told = {"listen_addresses": "127.0.0.1", "unix_socket_directories": "", **self._settings}
        process: subprocess.Popen[Any] = subprocess.Popen(
            [
                *(str(self._programs / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port)),
                *(part for name, value in told.items() for part in ("-c", f"{name}={value}")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / "log").open("ab"),
            cwd=self.folder,
            **self._user,
        )
        self._process = process
        give_up = time.monotonic() + _START_S
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > give_up:
                    raise
                time.sleep(0.05)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: ``SIGINT`` ends its sessions first; ``SIGQUIT`` stops it as a crash does."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """Return CPU-seconds of all of its processes so far, including those that have ended."""
        postmaster = psutil.Process(self.pid)
        times = postmaster.cpu_times()
        total = times.user + times.system + times.children_user + times.children_system
        for child in postmaster.children(recursive=True):
            own = child.cpu_times()
            total += own.user + own.system
        return total

    def _run(self, program: str, *arguments: str) -> None:
        command: Sequence[str] = [str(self._programs / program), *arguments]
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            **self._user,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr}")


@contextmanager
def postgres_server(**settings: str) -> Iterator[PostgresServer]:
    """Yield a running server; ``settings`` are those of ``postgresql.conf``."""
    folder = Path(tempfile.mkdtemp(prefix="lightning-postgres-"))
    folder.chmod(0o755)
    server = PostgresServer(folder, settings)
    try:
        server.make()
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
