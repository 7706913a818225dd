"""Which daemon this is: an id made at the first start and kept in the state folder, whatever address it listens on.
Daemons that share a store are one daemon to their clients: they have one id, kept in the store.

Spans wait on disk for one daemon, by this id, so that another project's daemon at the same address never gets them.
"""

import logging
import re
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from lightning_instrumentation.access.known import KnownDaemon, known_daemon
from lightning_instrumentation.access.proof import PATH, identity_proof, owner_of_token, proof
from lightning_instrumentation.delivery.spool import endpoint_folder, orphaned_spools
from lightning_instrumentation.settings import default_spool_dir

from lightning_trainer.daemon.state_folder import kept_once
from lightning_trainer.errors import ConfigError
from lightning_trainer.store.upkeep.files import DAEMON_ID

_log = logging.getLogger(__name__)

# ``GET /lightning/challenge?nonce=``: the daemon proves that it has the token, and says which one it is.

_NONCE = Query(pattern="^[0-9a-f]{16,128}$")


def challenge_router(token: str | None, daemon: str) -> APIRouter:
    """Return the route. Without a token its proofs are None.

    Args:
        daemon: the daemon's id.
    """
    router = APIRouter()

    @router.get(PATH)
    async def challenge(nonce: Annotated[str, _NONCE]) -> dict[str, str | None]:
        return {
            "proof": None if token is None else proof(token, nonce),
            "daemon": daemon,
            "daemon_proof": None if token is None else identity_proof(token, nonce, daemon),
        }

    return router


_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Identity:
    """A daemon's id, and the names under which spans wait for it on disk."""

    daemon: str
    owners: tuple[str, ...]
    """Names under which spans wait for it: its id, and its token's owner for clients that knew only the token."""

    def shared_as(self, daemon: str) -> "Identity":
        """Return the identity under the id of the store that it shares; spans that wait for its own id stay its own."""
        return replace(self, daemon=daemon, owners=tuple(dict.fromkeys((daemon, *self.owners))))


def identity_of_daemon(state_dir: Path, url: str, token: str | None) -> Identity:
    """Return the daemon's identity, which is made at its first start.

    After its state folder was emptied a daemon keeps its id, as long as the id is remembered for its address.

    Raises:
        ConfigError: the id cannot be stored, or the stored one is malformed.
    """
    path = state_dir / DAEMON_ID
    known = known_daemon(url)
    remembered = known.daemon if known is not None and known.state_dir == str(state_dir) else None
    daemon = kept_once(path, "the daemon's id", lambda: remembered or secrets.token_hex(16))
    if not _ID.fullmatch(daemon):
        raise ConfigError(f"{path} holds no id of 32 hexadecimal digits: delete it, and the next start makes another")
    return Identity(daemon, (daemon,) if token is None else (daemon, owner_of_token(token)))


def leave_to_its_owner(url: str, identity: Identity) -> None:
    """Set aside the spans at this address that name no daemon, for the last daemon here, if that was another one.

    Clients of older versions did not say which daemon their spans were for.
    """
    known = known_daemon(url)
    owner = None if known is None else _owner(known)
    if owner is None or owner in identity.owners:
        return
    spool_dir = default_spool_dir()
    try:
        for spool in orphaned_spools(spool_dir, url, (None,)):
            with spool:
                spool.move_to(endpoint_folder(spool_dir, url, owner))
    except OSError as error:
        _log.warning("spans that wait for the daemon that was at %s before could not be set aside: %s", url, error)


def _owner(known: KnownDaemon) -> str | None:
    if known.daemon is not None:
        return known.daemon
    return None if known.token is None else owner_of_token(known.token)
