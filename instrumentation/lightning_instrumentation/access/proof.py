"""Before anything is sent to a daemon that has a token, it shows that it has it, without either side saying it.

The client sends a number that it has drawn, the daemon answers with ``HMAC-SHA256(token, number)``. What else listens
at that address gets the number alone: no prompt, no token.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from lightning_instrumentation.access.known import known_daemon

if TYPE_CHECKING:
    import http.client

PATH = "/lightning/challenge"
TOKEN_HEADER = "x-lightning-token"
"""Opens the daemon beside a key that the caller's client sends for its own reasons."""
NO_TOKEN = "none"
"""As a token: the daemon has none."""
_CONTEXT = b"lightning-trainer daemon 1\n"
_HOLDS_S = 10.0
"""A proof is good for so long where connections are not ours, as long as no call met a closed port."""
_LOOK_AGAIN_S = 1.0
"""After so long the file with the token is read again."""
_TIMEOUT_S = 2.0
_LONGEST_ANSWER = 4096


class UnprovenDaemonError(ConnectionError):
    """What answers there is not known to be the daemon; nothing was sent to it."""


def proof(token: str, nonce: str) -> str:
    """Return what a daemon answers to a challenge."""
    return hmac.new(token.encode(), _CONTEXT + nonce.encode(), hashlib.sha256).hexdigest()


class Access:
    """How one process comes to one daemon; asked by any number of threads.

    Args:
        endpoint: base URL of the daemon.
        given: its token, where somebody said it; ``none`` for a daemon without. Else it is found where the daemon
            left it for clients of its own user.
    """

    def __init__(self, endpoint: str, given: str | None = None) -> None:
        self.endpoint = endpoint
        self._given = given
        self._path = urlsplit(endpoint).path.rstrip("/") + PATH
        self._lock = threading.Lock()
        self._proven: tuple[str, float] = "", 0.0
        self._found: tuple[str | None, float] | None = None

    @property
    def token(self) -> str | None:
        """None where it is not known, or there is none."""
        if self._given is not None:
            return None if self._given == NO_TOKEN else self._given
        now = time.monotonic()
        if self._found is None or now - self._found[1] > _LOOK_AGAIN_S:
            known = known_daemon(self.endpoint)
            if known is None:  # looked for again by the next call: a daemon may be starting this moment
                return None
            self._found = known.token, now
        return self._found[0]

    def prove(self, connection: http.client.HTTPConnection) -> str | None:
        """Have the other end of a connection prove itself; return the token that it may be sent.

        Raises:
            UnprovenDaemonError: it does not.
            OSError, http.client.HTTPException: it does not answer.
        """
        token = self.token
        if token is None:
            return None
        nonce = secrets.token_hex(16)
        connection.request("GET", f"{self._path}?nonce={nonce}", headers={"User-Agent": "lightning-trainer"})
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER)
        if not hmac.compare_digest(_proof_in(body).encode(), proof(token, nonce).encode()):
            raise UnprovenDaemonError(
                f"what answers at {self.endpoint} does not prove that it is your daemon (it answered {response.status} "
                "to a challenge), so nothing was sent to it"
            )
        self._proven = token, time.monotonic()
        return token

    def opened(self, timeout_s: float = _TIMEOUT_S) -> str | None:
        """Return the token for a connection that somebody else makes, after a proof of the last seconds or a new one.

        Args:
            timeout_s: how long a daemon that is there may take for each part of a new proof.

        Raises:
            UnprovenDaemonError: what answers there does not prove itself.
            OSError, http.client.HTTPException: nobody answers.
        """
        token = self.token
        if token is None:
            return None
        with self._lock:
            proven, at = self._proven
            if proven != token or time.monotonic() - at > _HOLDS_S:
                connection = connect(self.endpoint, timeout_s)
                try:
                    self.prove(connection)
                finally:
                    connection.close()
        return token

    def headers(self) -> dict[str, str]:
        """Return what opens the daemon; raises what ``opened`` does."""
        token = self.opened()
        return {} if token is None else {"authorization": f"Bearer {token}"}

    def forget(self) -> None:
        """A connection failed: the next one has to prove itself again."""
        self._proven = "", 0.0
        self._found = None

    def in_child(self) -> Access:
        """After a fork: the lock may be held by a thread that the child does not have."""
        return Access(self.endpoint, self._given)


def connect(endpoint: str, timeout_s: float) -> http.client.HTTPConnection:
    """Return a connection to a URL's host, not yet open."""
    import http.client  # 20 ms that only a process which talks to a daemon needs

    parts = urlsplit(endpoint)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    return kind(parts.hostname or "", parts.port, timeout=timeout_s)


def _proof_in(body: bytes) -> str:
    try:
        found = json.loads(body)["proof"]
    except (ValueError, KeyError, TypeError):
        return ""
    return found if isinstance(found, str) and found.isascii() else ""
