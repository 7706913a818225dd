"""Verifying the certificate of a daemon at an ``https`` URL, and explaining a failure.

If an authority is named (``LIGHTNING_CA_FILE``), the certificate must be for the URL's host name and signed by that
authority. Otherwise, if a daemon of the same user has left its certificate (``known``), only that one is trusted,
whatever name it is for. Otherwise the certificate must be for the URL's host name and signed by one of the machine's
authorities (``SSL_CERT_FILE``, ``SSL_CERT_DIR``).
"""

from __future__ import annotations

import contextlib
import importlib
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from lightning_instrumentation.errors import UnprovenDaemonError
from lightning_instrumentation.folders import named_path

if TYPE_CHECKING:
    import ssl

CA_FILE = "LIGHTNING_CA_FILE"
AUTHORITY_VARIABLES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
"""The variables from which other programs read that file: Node, and anything that uses OpenSSL, Go, or curl."""
_HOST_MISMATCH = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_EXPIRED, _NOT_YET_VALID = 10, 9
_NOT_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})


class TlsError(UnprovenDaemonError):
    """The other end cannot be trusted, or does not speak TLS; the message says what to do. Nothing was sent to it."""


def ca_file_of_environment() -> Path | None:
    """Return the file that ``LIGHTNING_CA_FILE`` names; None if it is not set."""
    named = os.environ.get(CA_FILE)
    return named_path(named, CA_FILE) if named else None


def tls_context(ca_file: Path | None, certificate: str | None) -> ssl.SSLContext:
    """Return the SSL context that verifies a daemon's certificate.

    Args:
        ca_file: certificates of authorities, PEM; None for those of the machine.
        certificate: the daemon's own certificate, PEM, if it has left one; ignored with a ``ca_file``.

    Raises:
        TlsError: the file cannot be read, or contains no certificate.
    """
    if ca_file is not None:
        try:
            changed_ns = ca_file.stat().st_mtime_ns
        except OSError as error:
            raise TlsError(f"{CA_FILE} = {str(ca_file)!r} cannot be read: {error.strerror}") from error
        return _of_authority(ca_file, changed_ns)
    if certificate is not None:
        return _of_one(certificate)
    return _of_machine(os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))


@lru_cache(maxsize=4)
def _of_authority(ca_file: Path, changed_ns: int) -> ssl.SSLContext:
    import ssl

    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except OSError as error:
        why = "it holds no certificate (PEM)" if isinstance(error, ssl.SSLError) else error.strerror
        raise TlsError(f"{CA_FILE} = {str(ca_file)!r} cannot be used: {why}") from error


@lru_cache(maxsize=16)
def _of_one(certificate: str) -> ssl.SSLContext:
    """Trust only this certificate: a server with another one fails, whoever signed it; names are not checked."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cadata=certificate)
    except (ssl.SSLError, ValueError) as error:
        raise TlsError(f"the certificate that a daemon has left cannot be read: {error}") from error
    return context


@lru_cache(maxsize=4)
def _of_machine(file: str | None, folder: str | None) -> ssl.SSLContext:
    """Return the context with the machine's authorities. The arguments are OpenSSL's environment variables, as cache
    keys."""
    import ssl

    context = ssl.create_default_context()
    places = ssl.get_default_verify_paths()
    if file is None and folder is None and places.cafile is None and places.capath is None:
        with contextlib.suppress(ImportError):  # an interpreter that does not know its machine's authorities
            context.load_verify_locations(cafile=importlib.import_module("certifi").where())
    return context


def explained(error: ssl.SSLError, endpoint: str, *, left: bool) -> TlsError:
    """Return the error that explains a failed handshake and says what to do.

    Args:
        left: whether the certificate that was expected is the one that the daemon has left.
    """
    import ssl

    what = f"the daemon at {endpoint} is not trusted"
    if not isinstance(error, ssl.SSLCertVerificationError):
        if error.reason in _NOT_TLS:
            return TlsError(f"what answers at {endpoint} does not speak TLS: write http:// in LIGHTNING_ENDPOINT")
        return TlsError(f"cannot establish a TLS connection to {endpoint} ({error.reason or error})")
    if error.verify_code in _HOST_MISMATCH:
        return TlsError(
            f"{what}: its certificate is for another name ({error.verify_message}); write a name that it has in "
            "LIGHTNING_ENDPOINT, or have a certificate made for this one"
        )
    if error.verify_code in (_EXPIRED, _NOT_YET_VALID):
        return TlsError(f"{what}: {error.verify_message}; give the daemon a new one ([daemon] tls_cert)")
    if left:
        return TlsError(
            f"{what}: it shows another certificate than your daemon has left for you. Start your daemon there, or set "
            f"{CA_FILE} to the certificate of the authority that signed this one"
        )
    return TlsError(
        f"{what}: {error.verify_message}. Set {CA_FILE} to the certificate of the authority that signed its certificate"
    )
