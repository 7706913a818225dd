"""The daemon's API for prompts, as an optimizer uses it."""

import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.errors import LightningError, NotThereError
from lightning_trainer.rollouts.daemon_client import DaemonClient, Reached, RefusedError

_AGAIN_S = 0.5
_PROPOSING_S = 3600.0
"""Limit of a proposal: the daemon waits for a busy model as long as the prompt's section allows."""


@dataclass(frozen=True, slots=True)
class Spent:
    """The calls and tokens of the model that writes texts."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.calls + other.calls,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
        )


class NoProposalError(LightningError):
    """The daemon has made no version; ``spent`` is what it used for trying."""

    def __init__(self, sentence: str, spent: Spent) -> None:
        super().__init__(sentence)
        self.spent = spent


@dataclass(frozen=True, slots=True)
class Proposed:
    """A version that the daemon has made."""

    version: PromptVersion
    made_by: str
    """The kind of the version's proposer: ``reflect`` or ``examples``."""
    spent: Spent


class PromptClient(DaemonClient):
    """A client for all prompts of a daemon; like every ``DaemonClient``, it waits for a daemon that is restarting."""

    def __init__(self, reached: Reached) -> None:
        super().__init__(reached.endpoint, None, token=reached.token, ca_file=reached.ca_file)
        self._prompts = f"{reached.endpoint.rstrip('/')}/lightning/prompts"

    def used_in(self, name: str, attempts: Sequence[str], *, wait_s: float) -> PromptVersion:
        """Return the version with which the first of these attempts ran that asked for the prompt.

        Args:
            attempts: the attempts' ids, 32 at most.
            wait_s: how long to wait for spans of theirs that are on their way.

        Raises:
            NotThereError: no attempt has arrived that asked for the prompt.
            LightningError: the daemon cannot be reached, or refuses us.
        """
        query, give_up = urllib.parse.urlencode({"used_in": attempts}, doseq=True), time.monotonic() + wait_s
        while True:
            try:
                return _version(self._get(f"{self._url_of(name)}?{query}", timeout_s=30.0))
            except NotThereError:
                if time.monotonic() > give_up:
                    raise
            time.sleep(_AGAIN_S)

    def root(self, name: str, version: int) -> str:
        """Return the digest of the default that a version derives from.

        Raises:
            LightningError: the daemon cannot be reached, or has no such version.
        """
        query = urllib.parse.urlencode({"before": version + 1, "limit": 1})
        found = self._get(f"{self._url_of(name)}?{query}", timeout_s=30.0)["versions"]
        if not found or found[0]["version"] != version:
            raise NotThereError(f"prompt {name!r} has no version {version} at the daemon")
        return found[0]["root"]

    def propose(self, name: str, parent: int, attempts: Sequence[str], *, seed: int) -> Proposed:
        """Have the daemon make a version of a prompt that may be better than its parent.

        Args:
            attempts: ids of the attempts that it is made from; those that a model should read come first.

        Raises:
            NoProposalError: the daemon cannot make one; the message says why.
            LightningError: the daemon cannot be reached, or has no such version.
        """
        asked = {"parent": parent, "attempts": list(attempts), "seed": seed}
        try:
            made = self._asked(f"{self._url_of(name)}/proposals", asked, timeout_s=_PROPOSING_S)
        except RefusedError as error:
            raise NoProposalError(str(error), _spent(error.details)) from error
        return Proposed(_version(made), made["made_by"], _spent(made))

    def put_score(self, name: str, version: int, *, stage: str, mean: float, tasks: int) -> None:
        """Have the daemon keep the mean reward that a version earned at a number of tasks."""
        url = f"{self._url_of(name)}/versions/{version}/scores"
        self._asked(url, {"stage": stage, "mean": mean, "tasks": tasks}, timeout_s=30.0)

    def use(self, name: str, version: int) -> None:
        """Have a version served to all programs that ask for the prompt with the default that the version derives from.

        Raises:
            LightningError: there is no such version.
        """
        self._asked(f"{self._url_of(name)}/live", {"version": version}, timeout_s=30.0)

    def _url_of(self, name: str) -> str:
        return f"{self._prompts}/{urllib.parse.quote(name, safe='')}"


def _version(document: dict[str, Any]) -> PromptVersion:
    return PromptVersion(document["version"], document["text"])


def _spent(answer: Mapping[str, Any]) -> Spent:
    """Return what an answer says was spent; zeros if it does not say, as with a daemon of an earlier version."""
    return Spent(**(answer.get("spent") or {}))
