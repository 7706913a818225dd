"""Errors of PostgreSQL and its driver as one sentence that never contains the password."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit

from lightning_trainer.errors import LightningError, MalformedTelemetryError, StoreError

if TYPE_CHECKING:
    import psycopg

_ADVICE = {
    "53100": "the disk of the PostgreSQL server is full: make room there; what was not acknowledged is sent again",
    "53300": "the PostgreSQL server has no connection left: raise its max_connections",
    "42501": "the role of [store] url may not do that: let it own its schema",
    "25006": "the PostgreSQL server is read only: name the primary in [store] url",
    "55P03": "another daemon holds the store's write lock",
    "25P03": "this daemon was silent in the middle of a transaction, which the server has ended",
}
"""By SQLSTATE."""
_TOO_LONG = "54000"


def shown(url: str) -> str:
    """Return a PostgreSQL URL without its password and settings."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://"  # unparsable, so it may contain a password
    user = f"{parts.username}@" if parts.username else ""
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{user}{host}{parts.path}"


def without_password(text: str, url: str) -> str:
    """Return a text without the URL's password."""
    netloc = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]
    password = netloc.rpartition("@")[0].partition(":")[2]
    in_query = re.findall(r"[?&]password=([^&]*)", url)
    for one in (password, *in_query):
        for form in sorted({one, unquote(one), quote(unquote(one), safe="")}, key=len, reverse=True):
            if form:
                text = text.replace(form, "***")
    return text


def failure(error: psycopg.Error, url: str, *, connecting: bool = False) -> LightningError:
    """Return the error as a ``StoreError``, or as a ``MalformedTelemetryError`` if a value is too long for an index."""
    if error.sqlstate == _TOO_LONG:
        return MalformedTelemetryError(
            "an id, a name or a source is longer than the 2,700 bytes that an index can hold"
        )
    said = without_password(" ".join(str(error).split()), url)
    if connecting:
        return StoreError(
            f"the store {shown(url)} cannot be reached ({said}): check [store] url, and that the server runs and lets "
            "this role in"
        )
    advice = _ADVICE.get(error.sqlstate or "")
    if advice is not None:
        return StoreError(f"the store {shown(url)}: {advice} ({said})")
    return StoreError(f"the store {shown(url)}: {said}")
