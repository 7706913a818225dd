"""Challenge-response: before the client sends anything to a daemon with a token, the daemon proves that it has that
token; neither side sends it.

The client sends a random nonce, and the daemon answers with ``HMAC-SHA256(token, nonce)``. Any other process at that
address gets only the nonce: no prompt, no token. A proof is valid for the connection that it came over: connections
from ``Access.open`` are never reopened.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import threading
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lightning_instrumentation.access.known import KnownDaemon, known_daemon
from lightning_instrumentation.access.patience import current_patience, monotonic
from lightning_instrumentation.access.tls import explained, tls_context
from lightning_instrumentation.errors import OtherDaemonError, UnprovenDaemonError

if TYPE_CHECKING:
    import http.client
    import ssl
    from concurrent.futures import Future

__all__ = ["Access", "UnprovenDaemonError", "proof"]

PATH = "/lightning/challenge"
TOKEN_HEADER = "x-lightning-token"
"""Carries the daemon's token in addition to a key that the caller's client sends for its own reasons."""
NO_TOKEN = "none"
"""Given instead of a token: the daemon has none."""
_CONTEXT = b"lightning-trainer daemon 1\n"
_IDENTITY_CONTEXT = b"lightning-trainer daemon id 1\n"
_HOLDS_S = 10.0
"""How long a proof is valid for connections that callers open themselves, unless a call meets a closed port."""
_LOOK_AGAIN_S = 1.0
"""How often the file with the token is read again."""
PROOF_S = 2.0
"""How long a call waits for a new proof if it can go elsewhere."""
BUSY_S = 10.0
"""How long a call to the daemon itself waits: without the token it would fail, and its own timeout is longer."""
_SLOW_S = 0.25
"""If a proof took longer than this to fail, no new one is tried for ``_REMEMBERED_S``, because each delays a call."""
_REMEMBERED_S = 3.0
_LONGEST_ANSWER = 4096
_PROXY_SPEAKS = 500
"""From this status on, the answer may come from a proxy whose daemon is down."""
SPEAK_TLS = 426
"""The status with which a daemon with TLS answers clients that speak plain HTTP. Source: RFC 9110, section 15.5.22."""


def proof(token: str, nonce: str) -> str:
    """Return a daemon's answer to a challenge."""
    return hmac.new(token.encode(), _CONTEXT + nonce.encode(), hashlib.sha256).hexdigest()


def identity_proof(token: str, nonce: str, daemon: str) -> str:
    """Return the additional answer of a daemon that sends its id."""
    return hmac.new(token.encode(), _IDENTITY_CONTEXT + f"{nonce}\n{daemon}".encode(), hashlib.sha256).hexdigest()


def owner_of_token(token: str) -> str:
    """Return the owner of waiting spans while only the daemon's token is known; the token cannot be derived from it."""
    return f"token-{hmac.new(token.encode(), b'lightning-trainer spool 1', hashlib.sha256).hexdigest()[:32]}"


class Access:
    """One process's access to one daemon; thread-safe.

    Args:
        endpoint: base URL of the daemon.
        given: its token, if set explicitly; ``none`` for a daemon without one. By default the one that the daemon left
            for clients of its own user.
        ca_file: certificates of the authorities that sign an https daemon's certificate, PEM; None for the certificate
            that the daemon left for clients of its own user, else the machine's authorities.
        certificate: the daemon's own certificate, PEM, if it is known in another way.
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
        self._proving: tuple[Future[None], float] | None = None
        """The proof under way, and since when."""
        self._failed: tuple[BaseException, float] | None = None
        """The error of a slow proof, and until when it is raised again without a new proof."""
        self._found: tuple[KnownDaemon, float] | None = None
        self.daemon: str | None = None
        """Id of the daemon that this process records for, once known: another one at the address is refused."""
        self.accepted = False
        """Whether anything there has ever accepted a connection."""
        self.verified_by: ssl.SSLContext | None = None
        """The SSL context that verified the daemon's certificate when ``opened`` was last called; None without TLS."""

    @property
    def token(self) -> str | None:
        """Return the token; None if it is unknown, or there is none."""
        if self._given is not None:
            return None if self._given == NO_TOKEN else self._given
        known = self._known()
        return None if known is None else known.token

    @property
    def owner(self) -> str | None:
        """Return the owner of waiting spans; None if no daemon is known. It may come from the saved access data, before
        any proof: spans of a program that starts while its daemon is down belong to the last daemon at the address."""
        if self.daemon is None:
            known = self._known()
            if known is not None and (self._given is None or known.token == self.token):
                self.daemon = known.daemon
        if self.daemon is not None:
            return self.daemon
        token = self.token
        return None if token is None else owner_of_token(token)

    @property
    def proven(self) -> bool:
        """Whether a daemon has proven, since a connection last failed, that it has our token and which daemon it is."""
        token = self.token
        return token is not None and self.daemon is not None and self._proven[0] == token

    def tls(self) -> ssl.SSLContext | None:
        """Return the SSL context that verifies the daemon's certificate; None if the endpoint is not https.

        Raises:
            TlsError: a certificate file cannot be read.
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
        now = monotonic()
        if self._found is None or now - self._found[1] > _LOOK_AGAIN_S:
            known = known_daemon(self.endpoint)
            if known is None:  # the next call looks again: a daemon may be starting right now
                return None
            self._found = known, now
        return self._found[0]

    def open(self, timeout_s: float) -> tuple[http.client.HTTPConnection, str | None]:
        """Open a connection whose other end has proven itself; return it with the token that may be sent over it.

        It is not reopened automatically: once the other end has closed it, any request on it raises.

        Raises:
            UnprovenDaemonError: what answers is not the daemon.
            OSError, http.client.HTTPException: the daemon does not answer.
        """
        self._expect_what_was_left()
        connection = self._connected(timeout_s)
        try:
            return connection, self._prove(connection)
        except BaseException:
            connection.close()
            raise

    def _connected(self, timeout_s: float) -> http.client.HTTPConnection:
        plain, secure = _connection_types()
        context = self.tls()
        if context is None:
            connection = plain(self._host, self._port, timeout=timeout_s)
            connection.connect()
            self.accepted = True
        else:
            import ssl

            connection = secure(self._host, self._port, timeout=timeout_s, context=context)
            plain.connect(connection)  # the first half, without the handshake
            self.accepted = True
            try:
                connection.sock = context.wrap_socket(connection.sock, server_hostname=connection.host)
            except ssl.SSLError as error:
                connection.close()
                left = self._ca_file is None and self._left_certificate() is not None
                raise explained(error, self.endpoint, left=left) from error
        connection.auto_open = 0  # otherwise it would reconnect by itself, to whatever process listens by then
        return connection

    def _prove(self, connection: http.client.HTTPConnection) -> str | None:
        token = self.token
        if token is None and self.daemon is None:
            return None
        nonce = os.urandom(16).hex()  # not from `secrets`: a program may have a secrets.py of its own, with its keys
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
                other_token="proof" in _document(body),
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
        # An older version with a token sends no id; without a token, the id is all that distinguishes daemons.
        self._expect(daemon, required=token is None)
        self._proven = token or "", monotonic()
        self._failed = None
        return token

    def _why_not(self, status: int, body: bytes) -> str:
        """Return what is wrong and what to do; it distinguishes a wrong token, another program, and another daemon."""
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
        """Raise OtherDaemonError if the id ``daemon`` is not that of this process's daemon."""
        if self.daemon is None:
            self.daemon = daemon
        elif daemon != self.daemon and (daemon is not None or required):
            raise OtherDaemonError(
                f"the daemon at {self.endpoint} is another project's, and what this program recorded waits for the one "
                "that it began with. Start that one there again, or start this program anew to record for the present "
                "one; projects that run in turns need ports of their own"
            )

    def _expect_what_was_left(self) -> None:
        """Raise OtherDaemonError if the saved access data is of another project's daemon, without contacting it."""
        if self._given is None and self.daemon is not None and (known := self._known()) is not None:
            self._expect(known.daemon)

    def opened(self, timeout_s: float = PROOF_S) -> str | None:
        """Return the token for a connection that a caller opens itself, relying on a recent proof or a new one.

        All callers wait together for one new proof, each as long as its hook allows.

        Args:
            timeout_s: limit for a new proof.

        Raises:
            UnprovenDaemonError: what answers does not prove that it is the daemon.
            OSError, http.client.HTTPException: nothing answers.
        """
        self._expect_what_was_left()
        self.verified_by = self.tls()
        token, patience = self.token, current_patience()
        if patience.error is not None:
            raise patience.error
        if not patience.met and self.is_due():
            self._wait(patience.at_most(timeout_s))
        return token

    def is_due(self) -> bool:
        """Whether a new proof is needed before a caller's next connection."""
        token = self.token
        if token is None and self.daemon is None:
            return False
        proven, at = self._proven
        return proven != (token or "") or monotonic() - at > _HOLDS_S

    def _wait(self, limit_s: float) -> None:
        from concurrent.futures import wait

        failed = self._failed
        if failed is not None and monotonic() < failed[1]:
            raise failed[0].with_traceback(None)
        proving, since = self._begun()
        wait((proving,), max(0.0, since + limit_s - monotonic()))
        if not proving.done():
            raise TimeoutError(f"no proof within {limit_s:g} s")
        error = proving.exception()
        if error is not None:
            raise error.with_traceback(None)

    def _begun(self) -> tuple[Future[None], float]:
        """Return the proof under way, after beginning one if there is none."""
        from concurrent.futures import Future

        with self._lock:
            if self._proving is not None and not self._proving[0].done():
                return self._proving
            begun: tuple[Future[None], float] = Future(), monotonic()
            self._proving = begun
        proof = threading.Thread(target=self._attempt, args=begun, name="lightning-proof", daemon=True)
        try:
            proof.start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads
            self._attempt(*begun)
        return begun

    def _attempt(self, proving: Future[None], since: float) -> None:
        try:
            self.open(BUSY_S)[0].close()
        except BaseException as error:
            now = monotonic()
            if now - since > _SLOW_S:
                self._failed = error, now + _REMEMBERED_S
            proving.set_exception(error)
        else:
            proving.set_result(None)

    def headers(self) -> dict[str, str]:
        """Return the authentication headers; raises like ``opened``."""
        return authorization(self.opened())

    def forget(self) -> None:
        """Invalidate the proof after a failed connection: the next one has to prove itself again."""
        self._proven = "", 0.0
        self._failed = None
        self._found = None

    def in_child(self) -> Access:
        """Reset after a fork: a thread that does not exist in the child may hold the lock."""
        child = Access(self.endpoint, self._given, ca_file=self._ca_file, certificate=self._certificate)
        child.daemon = self.daemon
        return child


@cache
def _connection_types() -> tuple[type[http.client.HTTPConnection], type[http.client.HTTPSConnection]]:
    """Return the standard library's own connection classes, even if vcrpy has replaced them: its classes would write
    our requests, with the token, to the user's cassette."""
    import http.client  # 20 ms that only processes with a daemon need

    plain, secure = http.client.HTTPConnection, http.client.HTTPSConnection
    return getattr(plain, "_baseclass", plain), getattr(secure, "_baseclass", secure)


def authorization(token: str | None) -> dict[str, str]:
    """Return the header that carries a token."""
    return {} if token is None else {"authorization": f"Bearer {token}"}


def _read(body: bytes) -> dict[str, str]:
    """Return the text fields of an answer to a challenge."""
    return {name: value for name, value in _document(body).items() if isinstance(value, str) and value.isascii()}


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _agree(said: str | None, proven: str) -> bool:
    return said is not None and hmac.compare_digest(said.encode(), proven.encode())
