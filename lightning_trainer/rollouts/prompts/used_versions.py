"""The versions of prompts that attempts ran with: those that the program has, and whether a candidate's reach it."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Protocol

from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.errors import NotThereError
from lightning_trainer.rollouts.attempt import AttemptEnded
from lightning_trainer.rollouts.prompts.journal import Journal, OtherSearchError

_log = logging.getLogger(__name__)
_ARRIVES_S = 10.0
"""How long to wait for a program's spans, which arrive after its end."""
_SOON_S = 2.0
"""The same if there are other attempts that may say the same."""
_MOST_ASKED = 32
"""The most attempts that are searched for the versions that the program has."""


class Used(Protocol):
    """A client that knows which versions attempts ran with."""

    def used_in(self, name: str, attempts: Sequence[str], *, wait_s: float) -> PromptVersion:
        """See ``PromptClient.used_in``."""
        ...

    def root(self, name: str, version: int) -> str:
        """See ``PromptClient.root``."""
        ...


class UsedVersions:
    """Asks the daemon which versions attempts ran with, and keeps the answers in the search's journal."""

    def __init__(self, daemon: Used, journal: Journal) -> None:
        self._daemon = daemon
        self._journal = journal
        self._reached: set[str] = set()
        """Prompts that were checked for whether their texts reach the program."""

    def versions_in(
        self, ended: Sequence[AttemptEnded], names: Sequence[str], *, is_last: bool
    ) -> dict[str, PromptVersion]:
        """Return the versions of the prompts that attempts ran with; all prompts share one time limit for their spans.

        Raises:
            NotThereError: ``is_last``, and no attempt asked for one of the prompts.
        """
        give_up = time.monotonic() + (_ARRIVES_S if is_last else _SOON_S)
        found: dict[str, PromptVersion] = {}
        best_first = sorted(ended, key=lambda one: one.reward is None)[:_MOST_ASKED]
        attempts = [one.attempt_id for one in best_first]
        for name in names:
            key = ["used", name, attempts]
            if (said := self._journal.take(key)) is None:
                try:
                    said = asdict(self._daemon.used_in(name, attempts, wait_s=max(0.0, give_up - time.monotonic())))
                except NotThereError:
                    if is_last:
                        self._journal.begin_anew()
                        raise
                    said = {}
                self._journal.write(key, said)
            if said:
                found[name] = PromptVersion(**said)
        return found

    def check_same(self, began_with: Mapping[str, PromptVersion], again: AttemptEnded) -> None:
        """Check that the program still has the defaults that the search's first versions derive from.

        Args:
            again: an attempt with the versions that the program has now.

        Raises:
            OtherSearchError: the program has another default.
            LightningError: the daemon cannot be reached, or no longer has a version.
        """
        give_up = time.monotonic() + _ARRIVES_S
        for name, before in began_with.items():
            try:
                now = self._daemon.used_in(name, [again.attempt_id], wait_s=max(0.0, give_up - time.monotonic()))
            except NotThereError:
                _log.warning(
                    "the search goes on with %s@v%d, and whether the program still has the default that this derives "
                    "from is not known: an attempt did not ask for %r, or what it recorded has not come",
                    name,
                    before.version,
                    name,
                )
                continue
            if len({self._daemon.root(name, one) for one in {before.version, now.version}}) > 1:
                raise OtherSearchError(
                    f"the journal {self._journal.path} is of another search (it began with {name}@v{before.version}, "
                    f"and the program has another default by now, that of {name}@v{now.version}); name another file to "
                    "begin anew"
                )

    def check_reached(
        self, child: Mapping[str, PromptVersion], before: Mapping[str, PromptVersion], attempts: Sequence[str]
    ) -> None:
        """Warn if the first new text of a prompt does not reach the program: no text could then be better."""
        for name in [one for one in child if child[one] != before[one] and one not in self._reached]:
            self._reached.add(name)
            if self._journal.take(["reached", name]) is None:
                why = self._why_unreached(name, child[name].version, attempts)
                if why is not None:
                    _log.warning("%s", why)
                self._journal.write(["reached", name], why is None)

    def _why_unreached(self, name: str, version: int, attempts: Sequence[str]) -> str | None:
        """Return why attempts say nothing about the version that they were given; None if one of them ran with it.

        Raises:
            LightningError: the daemon cannot be reached, or refuses us.
        """
        try:
            found = self._daemon.used_in(name, attempts, wait_s=_ARRIVES_S)
        except NotThereError:
            return (
                f"none of the {len(attempts)} attempts with {name}@v{version} asked for {name!r}, so they say nothing "
                "about it: call lt.prompt where the text is used, in each attempt, and do not keep what it returns"
            )
        if found.version == version:
            return None
        return (
            f"attempts with {name}@v{version} ran with v{found.version}, and say nothing about it: what a search gives "
            "reaches the program or function that it calls, and no service that these ask"
        )
