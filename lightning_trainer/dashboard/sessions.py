"""Browser sessions: the cookie is random and carries no data; the daemon's token never leaves the login form.

A session is kept in memory as the hash of its cookie, so logging out ends it, and a restart of the daemon ends all
sessions. Its forms carry an HMAC of that hash under a key of this process (synchronizer token, OWASP CSRF Prevention
Cheat Sheet).
"""

import asyncio
import hashlib
import hmac
import secrets
import time
from collections import OrderedDict
from dataclasses import dataclass

from fastapi import Request
from lightning_instrumentation.access.proof import TOKEN_HEADER

_LASTS_S = 12 * 3600.0
_MOST = 256
_AFTER_A_WRONG_TOKEN_S = 0.5
_WAITING_LOGINS = 16
_SHOWN = 256


@dataclass(frozen=True, slots=True)
class Visitor:
    """Someone who may see the pages."""

    csrf: str
    """The mark that a form must carry."""
    session: str | None
    """Hash of the cookie; None for a daemon without a token, and for a bearer token."""
    by_token: bool = False
    """Whether it is a program that sent the daemon's token itself: no web page can make a browser do that."""


class Sessions:
    """The sessions of one daemon.

    Args:
        token: the daemon's; None: anyone who reaches the port may look and act.
    """

    def __init__(self, token: str | None) -> None:
        self._token = None if token is None else token.encode()
        self._key = secrets.token_bytes(32)
        self._until: OrderedDict[str, float] = OrderedDict()
        self._one_wrong_at_a_time = asyncio.Lock()
        self._trying = 0

    @property
    def needed(self) -> bool:
        """Whether a visitor has to log in."""
        return self._token is not None

    def visitor(self, request: Request) -> Visitor | None:
        """Return who is asking; None for someone who has to log in."""
        if self._token is None:
            return Visitor(self._csrf("everybody"), None)
        session = _hashed(request.cookies.get(cookie_name(request), ""))
        until = self._until.get(session)
        if until is not None and until > time.monotonic():
            return Visitor(self._csrf(session), session)
        for given in (bearer(request), request.headers.get(TOKEN_HEADER, "")):
            if hmac.compare_digest(given.encode(), self._token):
                return Visitor(self._csrf("token"), None, by_token=True)
        return None

    async def log_in(self, given: str) -> str | None:
        """Return a new session's cookie; None if the token is wrong, after a delay, or if too many logins wait."""
        if self._token is None or self._trying >= _WAITING_LOGINS:
            return None
        if not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self._token):
            self._trying += 1
            try:
                async with self._one_wrong_at_a_time:
                    await asyncio.sleep(_AFTER_A_WRONG_TOKEN_S)
            finally:
                self._trying -= 1
            return None
        cookie = secrets.token_urlsafe(32)
        self._until[_hashed(cookie)] = time.monotonic() + _LASTS_S
        while len(self._until) > _MOST:
            self._until.popitem(last=False)
        return cookie

    def log_out(self, visitor: Visitor) -> None:
        """End the visitor's session, if there is one."""
        if visitor.session is not None:
            self._until.pop(visitor.session, None)

    def refusal(self, request: Request, visitor: Visitor, given: str) -> str | None:
        """Return why a form is refused; None if it came from one of our own pages."""
        if visitor.by_token:
            return None
        marked = hmac.compare_digest(given.encode("utf-8", "replace"), visitor.csrf.encode())
        if not marked or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "the form is not of this session: open its page again"
        origin, host = request.headers.get("origin"), request.headers.get("host", "")
        if origin is not None and origin.partition("://")[2] != host:
            return (
                f"the form came from {origin[:_SHOWN]!r}, but the request's Host is {host[:_SHOWN]!r}: a proxy before "
                "the daemon has to pass the browser's Host on (nginx: proxy_set_header Host $http_host)"
            )
        return None

    def _csrf(self, of: str) -> str:
        return hmac.new(self._key, of.encode(), hashlib.sha256).hexdigest()


def bearer(request: Request) -> str:
    """Return the token that a program sent; an empty text if it sent none."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def cookie_name(request: Request) -> str:
    """Return the cookie's name; browsers share cookies among the ports of a host, so it carries the port."""
    return f"lightning_session_{request.url.port or 80}"


def _hashed(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()
