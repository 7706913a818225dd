"""The daemon's certificate: read before anything else starts, refused in a sentence if it cannot be used, and read
again when its files change, so that a renewed one is shown without a restart.

A handshake in memory tells whether a client accepts the certificate.
"""

import asyncio
import logging
import os
import ssl
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.config import DaemonConfig
from lightning_trainer.errors import ConfigError

_log = logging.getLogger(__name__)

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_LOOK_AGAIN_S = 60.0
SOON_DAYS = 14.0
_DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that was read, tried in a handshake, and can be shown to clients."""

    context: ssl.SSLContext
    """Shows it to clients with TLS 1.2 or later."""
    pem: str
    """The certificate itself, without the rest of its chain."""
    names: tuple[str, ...]
    """Host names and addresses that it is for."""
    expires_at: float
    """In seconds since 1970."""

    @property
    def days_left(self) -> float:
        """Return the days until it expires; negative if it has."""
        return (self.expires_at - time.time()) / _DAY_S


def read_certificate(config: DaemonConfig) -> Certificate | None:
    """Return the certificate that the daemon shows; None for a daemon without TLS.

    Raises:
        ConfigError: a file is missing or cannot be read, other users may read the key, key and certificate do not go
            together, the key has a passphrase, or the certificate is not valid now.
    """
    if config.tls_cert is None or config.tls_key is None:
        return None
    cert, key = config.tls_cert, config.tls_key
    text = _text("tls_cert", cert)
    try:
        pem = first_certificate(text)
    except ValueError as error:
        raise ConfigError(f"[daemon] tls_cert = {str(cert)!r}: {error}") from None
    if "PRIVATE KEY-----" not in _text("tls_key", key):
        raise ConfigError(f"[daemon] tls_key = {str(key)!r} holds no private key (PEM)")
    _its_owners_alone(key)
    context = _context(cert, key)
    seen = _as_a_client_sees_it(context, pem, cert)
    names = tuple(str(value) for kind, value in seen.get("subjectAltName", ()) if kind in ("DNS", "IP Address"))
    return Certificate(context, pem, names, float(ssl.cert_time_to_seconds(seen["notAfter"])))


def certified_names(config: DaemonConfig) -> tuple[str, ...]:
    """Return the names that the daemon's certificate is for; none if it has none, or none that can be used here."""
    try:
        certificate = read_certificate(config)
    except ConfigError:
        return ()
    return () if certificate is None else certificate.names


def first_certificate(text: str) -> str:
    """Return the first certificate in the text of a PEM file.

    Raises:
        ValueError: there is none.
    """
    if _BEGIN not in text or _END not in text:
        raise ValueError("it holds no certificate (PEM)")
    return text[text.index(_BEGIN) : text.index(_END) + len(_END)] + "\n"


def _text(setting: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise ConfigError(f"[daemon] {setting} = {str(path)!r}: there is no such file") from None
    except OSError as error:
        raise ConfigError(f"[daemon] {setting} = {str(path)!r} cannot be read: {error.strerror}") from error


def _its_owners_alone(key: Path) -> None:
    """Require that only its owner can read the key, or a group if root owns it: PostgreSQL's rule."""
    status = key.stat()
    if status.st_uid == 0 and os.geteuid() != 0:
        forbidden = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO
    elif status.st_uid in (0, os.geteuid()):
        forbidden = stat.S_IRWXG | stat.S_IRWXO
    else:
        raise ConfigError(f"[daemon] tls_key = {str(key)!r} belongs to another user, who may change it")
    if status.st_mode & forbidden:
        raise ConfigError(
            f"[daemon] tls_key = {str(key)!r} is open to other users (mode {stat.S_IMODE(status.st_mode):o}): "
            f"chmod 600 {key}"
        )


def _context(cert: Path, key: Path) -> ssl.SSLContext:
    asked = False

    def passphrase() -> str:
        nonlocal asked
        asked = True
        return ""

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(cert, key, passphrase)
    except (ssl.SSLError, ValueError) as error:
        if asked:
            raise ConfigError(
                f"[daemon] tls_key = {str(key)!r} is encrypted: take its passphrase off (openssl pkey -in {key.name} "
                "-out key.pem), since nobody is there to type it when the daemon starts"
            ) from None
        reason = getattr(error, "reason", None)
        if reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(
                f"[daemon] tls_key = {str(key)!r} is not the key of the certificate in tls_cert = {str(cert)!r}, whose "
                "own certificate stands first in its file"
            ) from None
        raise ConfigError(
            f"[daemon] tls_cert = {str(cert)!r} and tls_key = {str(key)!r} cannot be used: {reason or error}"
        ) from None
    return context


def _as_a_client_sees_it(context: ssl.SSLContext, pem: str, cert: Path) -> Any:
    """Return the certificate, decoded, after a handshake with a client that trusts it.

    Raises:
        ConfigError: the client refuses it for a reason other than its signer.
    """
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname = False
    trusting.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    trusting.load_verify_locations(cadata=pem)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = trusting.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    try:
        for _ in range(3):
            for side in (client, server):
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"[daemon] tls_cert = {str(cert)!r} cannot be used: {error.verify_message}; have a new one made"
        ) from None
    except ssl.SSLError as error:
        raise ConfigError(f"[daemon] tls_cert = {str(cert)!r} cannot be used: {error.reason or error}") from None
    return client.getpeercert()


class ShownCertificate:
    """The certificate that new connections are shown: the newest usable one in the configured files."""

    def __init__(self, config: DaemonConfig, first: Certificate) -> None:
        self._config = config
        self._stamps = _stamps(config)
        self.now = first

    async def keep_fresh(self, renewed: Callable[[Certificate], object]) -> None:
        """Read the files again whenever they change, forever, and call ``renewed`` with the new certificate."""
        warned, refused = False, ""
        while True:
            if self.now.days_left < SOON_DAYS and not warned:
                warned = True
                _log.warning("%s", expires_soon(self.now))
            await asyncio.sleep(_LOOK_AGAIN_S)
            stamps = _stamps(self._config)
            if stamps == self._stamps:
                continue
            try:
                found = await asyncio.to_thread(read_certificate, self._config)
            except (ConfigError, OSError) as error:
                # The files may be in the middle of being replaced, and neither a change of mode nor the day from which
                # they are valid shows in the stamps: so they are read at each look until they can be used.
                if str(error) != refused:
                    refused = str(error)
                    _log.warning("the certificate of before is still shown: %s", error)
                continue
            self._stamps, refused = stamps, ""
            if found is not None:
                self.now, warned = found, False
                renewed(found)
                _log.info("a new certificate is shown, for %s", ", ".join(found.names))


def without_tls(host: str) -> str:
    """Return the warning about a daemon that other machines reach without TLS."""
    return (
        f"[daemon] host = {host!r} is reachable from other machines and there is no TLS: the token and every prompt "
        "can be read on the way. Set tls_cert and tls_key, or listen on 127.0.0.1 behind a proxy with TLS"
    )


def expires_soon(certificate: Certificate) -> str:
    """Return the warning about a certificate that is about to expire."""
    return (
        f"the certificate of [daemon] tls_cert expires in {certificate.days_left:.0f} days: put a new one in its "
        "place, which is then shown without a restart"
    )


def _stamps(config: DaemonConfig) -> tuple[int, ...]:
    stamps = []
    for path in (config.tls_cert, config.tls_key):
        try:
            stamps.append(0 if path is None else path.stat().st_mtime_ns)
        except OSError:
            stamps.append(0)  # about to be replaced
    return tuple(stamps)
