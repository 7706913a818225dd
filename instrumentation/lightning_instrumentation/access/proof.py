"""Before anything is sent to a daemon that has a token, it shows that it has it, without either side saying it.

The client sends a number that it has drawn, the daemon answers with ``HMAC-SHA256(token, number)``. What else listens
at that address gets the number alone: no prompt, no token. A proof is good for the connection that it came over:
connections of ``Access.open`` are never opened again behind it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning_instrumentation.access.known import KnownDaemon, known_daemon
from lightning_instrumentation.access.tls import explained, tls_context
from lightning_instrumentation.errors import OtherDaemonError, UnprovenDaemonError

if TYPE_CHECKING:
    import http.client
    import ssl

__all__ = ["Access", "UnprovenDaemonError", "proof"]

PATH = "/lightning/challenge"
TOKEN_HEADER = "x-lightning-token"
"""Opens the daemon along with a key that the caller's client sends for its own reasons."""
NO_TOKEN = "none"
"""As a token: the daemon has none."""
_CONTEXT = b"lightning-trainer daemon 1\n"
_IDENTITY_CONTEXT = b"lightning-trainer daemon id 1\n"
_HOLDS_S = 10.0
"""A proof is good for so long where connections are not ours, as long as no call met a closed port."""
_LOOK_AGAIN_S = 1.0
"""After so long the file with the token is read again."""
_TIMEOUT_S = 2.0
_LONGEST_ANSWER = 4096
_PROXY_SPEAKS = 500
"""From this status on it may be a proxy that tells of a daemon which is away."""
SPEAK_TLS = 426
"""Status of a daemon with TLS, for who speaks plain HTTP to it. Source: RFC 9110, section 15.5.22."""


def proof(token: str, nonce: str) -> str:
    """Return what a daemon answers to a challenge."""
    return hmac.new(token.encode(), _CONTEXT + nonce.encode(), hashlib.sha256).hexdigest()


def identity_proof(token: str, nonce: str, daemon: str) -> str:
    """Return what a daemon that says its id answers besides that."""
    return hmac.new(token.encode(), _IDENTITY_CONTEXT + f"{nonce}\n{daemon}".encode(), hashlib.sha256).hexdigest()


def owner_of_token(token: str) -> str:
    """Return for whom spans wait as long as no more than its token is known; the token does not follow from it."""
    return f"token-{hmac.new(token.encode(), b'lightning-trainer spool 1', hashlib.sha256).hexdigest()[:32]}"


class Access:
    """How one process comes to one daemon; asked by any number of threads.

    Args:
        endpoint: base URL of the daemon.
        given: its token, where someone said it; ``none`` for a daemon without. Else it is found where the daemon
            left it for clients of its own user.
        ca_file: certificates of the authorities that an https daemon's is signed by, PEM; None for what the daemon left
            for clients of its own user, else the machine's authorities.
        certificate: the daemon's own, PEM, where it is known without having been left.
    """

    def __init__(
        self, endpoint: str, given: str | None = None, *, ca_file: Path | None = None, certificate: str | None = None
    ) -> None:
        self.endpoint = endpoint
        self._given = given
        self._ca_file = ca_file
        self._certificate = certificate
        parts = urlsplit(endpoint)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._path = parts.path.rstrip("/") + PATH
        self._lock = threading.Lock()
        self._proven: tuple[str, float] = "", 0.0
        self._found: tuple[KnownDaemon, float] | None = None
        self.daemon: str | None = None
        """Id of the one that this process records for, once it is known: another one at the address is a stranger."""
        self.verified_by: ssl.SSLContext | None = None
        """What looked at the daemon's certificate when it was last ``opened``; None where there is no TLS."""

    @property
    def token(self) -> str | None:
        """None where it is not known, or there is none."""
        if self._given is not None:
            return None if self._given == NO_TOKEN else self._given
        known = self._known()
        return None if known is None else known.token

    @property
    def owner(self) -> str | None:
        """For whom to keep what waits; None where nobody is known. It may follow from what was left, before any proof:
        a program that starts while its daemon is away belongs to the one that was there last."""
        if self.daemon is None:
            known = self._known()
            if known is not None and (self._given is None or known.token == self.token):
                self.daemon = known.daemon
        if self.daemon is not None:
            return self.daemon
        token = self.token
        return None if token is None else owner_of_token(token)

    def tls(self) -> ssl.SSLContext | None:
        """Return what looks at the daemon's certificate; None where the endpoint is not https.

        Raises:
            TlsError: what it is to be looked at with cannot be read.
        """
        if not self._secure:
            return None
        certificate = self._left_certificate() if self._ca_file is None else None
        return tls_context(self._ca_file, certificate)

    def _left_certificate(self) -> str | None:
        if self._certificate is not None:
            return self._certificate
        known = self._known()
        return None if known is None else known.certificate

    def _known(self) -> KnownDaemon | None:
        now = time.monotonic()
        if self._found is None or now - self._found[1] > _LOOK_AGAIN_S:
            known = known_daemon(self.endpoint)
            if known is None:  # looked for again by the next call: a daemon may be starting this moment
                return None
            self._found = known, now
        return self._found[0]

    def open(self, timeout_s: float) -> tuple[http.client.HTTPConnection, str | None]:
        """Open a connection whose other end has proven itself; return it with the token that it may be sent.

        It is not opened again by itself: when the other end has closed it, whatever is asked on it raises.

        Raises:
            UnprovenDaemonError: what answers is not the daemon.
            OSError, http.client.HTTPException: it does not answer.
        """
        self._expect_what_was_left()
        connection = self._connected(timeout_s)
        try:
            return connection, self._prove(connection)
        except BaseException:
            connection.close()
            raise

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        import http.client  # 20 ms that only a process which talks to a daemon needs

        context = self.tls()
        if context is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=timeout_s)
            connection.connect()
        else:
            import ssl

            connection = http.client.HTTPSConnection(self._host, self._port, timeout=timeout_s, context=context)
            try:
                connection.connect()
            except ssl.SSLError as error:
                connection.close()
                left = self._ca_file is None and self._left_certificate() is not None
                raise explained(error, self.endpoint, left=left) from error
        connection.auto_open = 0  # else it would connect again by itself, to whatever process listens there then
        return connection

    def _prove(self, connection: http.client.HTTPConnection) -> str | None:
        token = self.token
        if token is None and self.daemon is None:
            return None
        nonce = secrets.token_hex(16)
        connection.request("GET", f"{self._path}?nonce={nonce}", headers={"User-Agent": "lightning-trainer"})
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER)
        if response.status == SPEAK_TLS:
            raise UnprovenDaemonError(f"the daemon at {self.endpoint} speaks TLS: write https:// in LIGHTNING_ENDPOINT")
        said = _read(body)
        if token is not None and not _agree(said.get("proof"), proof(token, nonce)):
            raise UnprovenDaemonError(
                f"what answers at {self.endpoint} does not prove that it is your daemon, so nothing was sent to it; "
                + self._why_not(response.status, body),
                passing=response.status >= _PROXY_SPEAKS,
            )
        if connection.sock is None:
            raise UnprovenDaemonError(
                f"what answers at {self.endpoint} closes each connection after one answer, so nothing can be sent over "
                "the one that was proven; let the proxy before the daemon keep connections"
            )
        daemon = said.get("daemon") or None
        if (
            token is not None
            and daemon is not None
            and not _agree(said.get("daemon_proof"), identity_proof(token, nonce, daemon))
        ):
            raise UnprovenDaemonError(f"what answers at {self.endpoint} does not prove which daemon it is")
        # With a token, one of an older version says no id; without one, that is all there is to tell daemons apart.
        self._expect(daemon, required=token is None)
        self._proven = token or "", time.monotonic()
        return token

    def _why_not(self, status: int, body: bytes) -> str:
        """What is wrong, and what to do: a wrong token is told apart from another program, and from another daemon."""
        said = _document(body)
        if "proof" not in said:
            return (
                f"it is not a lightning-trainer daemon (it answered {status} to a challenge): start the daemon there, "
                "or set LIGHTNING_ENDPOINT to where it runs"
            )
        if said["proof"] is None:
            return "it is a daemon without a token: if it is yours, set LIGHTNING_TOKEN=none"
        if self._given is not None:
            return (
                "it is a daemon with another token: set LIGHTNING_TOKEN to what `lightning-trainer token` prints where "
                "it runs, or leave it unset where that daemon is this user's"
            )
        return (
            "it is a daemon with another token than yours left here: start yours there, or set LIGHTNING_TOKEN to the "
            "token of the one that runs there"
        )

    def _expect(self, daemon: str | None, *, required: bool = False) -> None:
        """Raises OtherDaemonError: that is not the daemon of this process."""
        if self.daemon is None:
            self.daemon = daemon
        elif daemon != self.daemon and (daemon is not None or required):
            raise OtherDaemonError(
                f"the daemon at {self.endpoint} is another project's, and what this program recorded waits for the one "
                "that it began with. Start that one there again, or start this program anew to record for the present "
                "one; projects that run in turns need ports of their own"
            )

    def _expect_what_was_left(self) -> None:
        """Another project's daemon that has left its word here is not even asked. Raises OtherDaemonError."""
        if self._given is None and self.daemon is not None and (known := self._known()) is not None:
            self._expect(known.daemon)

    def opened(self, timeout_s: float = _TIMEOUT_S) -> str | None:
        """Return the token for a connection that someone else makes, after a proof of the last seconds or a new one.

        Args:
            timeout_s: how long a daemon that is there may take for each part of a new proof.

        Raises:
            UnprovenDaemonError: what answers there does not prove itself.
            OSError, http.client.HTTPException: nobody answers.
        """
        self._expect_what_was_left()
        self.verified_by = self.tls()
        token = self.token
        if token is None and self.daemon is None:
            return None
        with self._lock:
            proven, at = self._proven
            if proven != (token or "") or time.monotonic() - at > _HOLDS_S:
                self.open(timeout_s)[0].close()
        return token

    def headers(self) -> dict[str, str]:
        """Return what opens the daemon; raises what ``opened`` does."""
        return authorization(self.opened())

    def forget(self) -> None:
        """A connection failed: the next one has to prove itself again."""
        self._proven = "", 0.0
        self._found = None

    def in_child(self) -> Access:
        """After a fork: the lock may be held by a thread that the child does not have."""
        child = Access(self.endpoint, self._given, ca_file=self._ca_file, certificate=self._certificate)
        child.daemon = self.daemon
        return child


def authorization(token: str | None) -> dict[str, str]:
    """Return the header that says a token."""
    return {} if token is None else {"authorization": f"Bearer {token}"}


def _read(body: bytes) -> dict[str, str]:
    """What is said in an answer to a challenge, as far as it is text."""
    return {name: value for name, value in _document(body).items() if isinstance(value, str) and value.isascii()}


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _agree(said: str | None, proven: str) -> bool:
    return said is not None and hmac.compare_digest(said.encode(), proven.encode())
