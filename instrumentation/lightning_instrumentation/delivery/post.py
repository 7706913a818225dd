"""One POST to ``{endpoint}/v1/traces`` over a kept-alive connection. Source: OTLP/HTTP 1.x, binary protobuf."""

from __future__ import annotations

import gzip
import http.client
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

from lightning_instrumentation.access.proof import Access, authorization
from lightning_instrumentation.routing.hosts import LOOPBACK, canonical_host

_CONNECT_TIMEOUT_S = 2.0
_ANSWER_TIMEOUT_S = 30.0
_WORTH_COMPRESSING = 1024
_PROTOBUF = "application/x-protobuf"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a POST; it may come from another service than the daemon (see ``by_daemon``)."""

    status: int
    body: bytes
    retry_after_s: float | None
    media_type: str = ""

    @property
    def by_daemon(self) -> bool:
        """Whether the answer can be a daemon's; another service at that address may answer anything with 200."""
        if 200 <= self.status < 300:
            return self.media_type in ("", _PROTOBUF)
        return self.media_type != "text/html" and self.status not in (404, 405, 501)

    def text(self) -> str:
        """Return the answer's message, at most 300 characters."""
        return (self._status_message() or self.body.decode("utf-8", "replace"))[:300].strip()

    def _status_message(self) -> str:
        """Return the message of OTLP's error, a google.rpc.Status; a span's Status has it in the same field."""
        if self.media_type != _PROTOBUF:
            return ""
        from google.protobuf.message import DecodeError
        from opentelemetry.proto.trace.v1.trace_pb2 import Status

        try:
            return Status.FromString(self.body).message
        except DecodeError:
            return ""


class Poster:
    """Posts bodies over one connection; used by one thread at a time."""

    def __init__(self, access: Access) -> None:
        parts = urlsplit(access.endpoint)
        self._access = access
        self.is_local = canonical_host(parts.hostname or "") == LOOPBACK
        self._path = f"{parts.path.rstrip('/')}/v1/traces"
        self._headers = {"Content-Type": _PROTOBUF, "User-Agent": "lightning-trainer"}
        self._authorization: dict[str, str] = {}
        """The headers for the open connection, whose other end has proven itself."""
        self._connection: http.client.HTTPConnection | None = None
        self.connected = False
        """Whether the daemon's port has answered at least once."""
        self.longest_s = _ANSWER_TIMEOUT_S
        """Limit for each step of a POST, which a program that sends without a thread waits for."""

    def post(self, body: bytes) -> Answer:
        """Send a body and return the answer.

        Raises:
            OSError, http.client.HTTPException: nothing answered, or something other than the daemon did.
        """
        headers = self._headers
        # On the same machine there is no network to save: compressing costs each side more than sending.
        if not self.is_local and len(body) > _WORTH_COMPRESSING:
            body = gzip.compress(body, compresslevel=1)
            headers = {**headers, "Content-Encoding": "gzip"}
        kept = self._connection is not None
        try:
            return self._once(body, headers)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            # A daemon that hangs is not asked again at once.
            if not kept or isinstance(error, TimeoutError):
                raise
        # A kept connection that the daemon has closed meanwhile says nothing about the daemon.
        try:
            return self._once(body, headers)
        except BaseException:
            self.close()
            raise

    def _once(self, body: bytes, headers: dict[str, str]) -> Answer:
        if self._connection is None:
            self._connection = self._opened()
        if self._connection.sock is not None:
            self._connection.sock.settimeout(min(_ANSWER_TIMEOUT_S, self.longest_s))
        self._connection.request("POST", self._path, body, {**headers, **self._authorization})
        response = self._connection.getresponse()
        answer = Answer(
            response.status,
            response.read(),
            _retry_after_s(response.getheader("Retry-After")),
            response.getheader("Content-Type", "").partition(";")[0].strip().lower(),
        )
        if response.will_close:
            self.close()
        return answer

    def _opened(self) -> http.client.HTTPConnection:
        connection, token = self._access.open(min(_CONNECT_TIMEOUT_S, self.longest_s))
        self.connected = True
        self._authorization = authorization(token)
        return connection

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def leave_to_parent(self) -> None:
        """Drop our copy of the socket in a forked child, without sending anything on it."""
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.close()
        self._connection = None


def _retry_after_s(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None
