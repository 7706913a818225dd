"""A daemon's prompts, asked for over HTTP: of a configuration's running daemon, or of the one at an endpoint."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.cli.daemon.remote import named_client
from lightning_trainer.cli.daemon.running_daemon import daemon_client
from lightning_trainer.config import Config
from lightning_trainer.errors import StoreError, UnknownVersionError
from lightning_trainer.prompts.earned import Earned
from lightning_trainer.rollouts.daemon_client import not_a_daemon, refusal
from lightning_trainer.store.prompts import PromptState, PromptSummary, PromptVersion

_PAGE = 100
"""Versions per answer: each has a text of up to 64 KiB."""
_TIMEOUT_S = 60.0
_Read = TypeVar("_Read")


class RemotePrompts:
    """All prompts of one daemon. Every method raises LightningError if the daemon refuses or does not answer."""

    def __init__(self, url: str, client: httpx.Client) -> None:
        self._url = url
        self._client = client

    def names(self) -> list[PromptSummary]:
        """Return all prompts by name."""
        return self._asked(
            "GET",
            "",
            lambda told: [PromptSummary(one["name"], tuple(one["live"]), one["versions"]) for one in told["prompts"]],
        )

    def versions(self, name: str) -> list[PromptVersion]:
        """Return all versions of a prompt in ascending order."""
        found: list[PromptVersion] = []
        while True:
            before = {"before": found[0].version} if found else {}
            page = self._versions(name, {"limit": _PAGE, **before})
            found = [*page, *found]
            if len(page) < _PAGE:
                return found

    def version(self, name: str, number: int) -> PromptVersion:
        """Return one version."""
        found = self._versions(name, {"before": number + 1, "limit": 1})
        if not found or found[0].version != number:
            raise UnknownVersionError(f"prompt {name!r} has no version {number} at the daemon at {self._url}")
        return found[0]

    def earned(self, name: str) -> dict[int, Earned]:
        """Return, by version, what it earned in live attempts."""
        return self._asked(
            "GET",
            f"/{_quoted(name)}/earned",
            lambda told: {one["version"]: _earned(one) for one in told["earned"]},
        )

    def use(self, name: str, number: int) -> None:
        """Serve a version."""
        self._asked("POST", f"/{_quoted(name)}/live", lambda told: told, json={"version": number})

    def add(self, name: str, text: str, parent: int, reason: str | None) -> int:
        """Add a person's version and return its number."""
        body = {"text": text, "parent": parent, "reason": reason}
        return self._asked("POST", f"/{_quoted(name)}/versions", lambda told: told["version"], json=body)

    def _versions(self, name: str, query: dict[str, int]) -> list[PromptVersion]:
        return self._asked(
            "GET",
            f"/{_quoted(name)}",
            lambda told: [_version(name, one) for one in told["versions"]],
            params=query,
        )

    def _asked(self, method: str, path: str, read: Callable[[Any], _Read], **sent: Any) -> _Read:
        try:
            answer = self._client.request(method, f"/lightning/prompts{path}", **sent)
        except httpx.HTTPError as error:
            raise StoreError(f"the daemon at {self._url} did not answer ({type(error).__name__}: {error})") from error
        if not answer.is_success:
            raise UnknownVersionError(refusal(self._url, answer.status_code, answer.content))
        try:
            return read(answer.json())
        except (KeyError, TypeError, ValueError) as error:
            why = f"its answer about prompts cannot be read: {type(error).__name__}: {error}"
            raise StoreError(not_a_daemon(self._url, why)) from error


@contextmanager
def prompts_at(endpoint: str, config_path: Path | None) -> Iterator[RemotePrompts]:
    """Yield the prompts of the daemon that an endpoint names.

    Raises:
        LightningError: as ``named_client``.
    """
    url = checked_endpoint(endpoint)
    with named_client(url, config_path, timeout_s=_TIMEOUT_S) as client:
        yield RemotePrompts(url, client)


@contextmanager
def prompts_of_running(url: str, config: Config) -> Iterator[RemotePrompts]:
    """Yield the prompts of a configuration's daemon.

    Raises:
        LightningError: something other than the daemon answers there, or nothing does.
    """
    with daemon_client(url, config, timeout_s=_TIMEOUT_S) as client:
        yield RemotePrompts(url, client)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _version(name: str, told: dict[str, Any]) -> PromptVersion:
    known = {field.name: told[field.name] for field in fields(PromptVersion) if field.name != "name"}
    return PromptVersion(name=name, **{**known, "state": PromptState(known["state"])})


def _earned(told: dict[str, Any]) -> Earned:
    known = {field.name: told[field.name] for field in fields(Earned)}
    return Earned(**{**known, "interval": None if known["interval"] is None else tuple(known["interval"])})
