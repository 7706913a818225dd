"""The promotion guard: a version that does worse on someone's held-out evaluation than the live one is not served.

The candidate is served for that time as any old version is, as ``POLICY@vN``: calls of the policy know nothing of it.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.daemon.publication.candidate_serving import serve_candidate
from lightning_trainer.daemon.publication.evaluation import held_out_score
from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.daemon.publication.old_versions import OldVersionEngine
from lightning_trainer.errors import LightningError
from lightning_trainer.serving.publication import Publication

_log = logging.getLogger(__name__)


class PromotionGuard:
    """Compares candidates with what is live; a version is evaluated once in the daemon's life."""

    def __init__(
        self,
        policy: str,
        config: GuardConfig,
        old_versions: OldVersionEngine | OldAdapters,
        *,
        url: str,
        token: str | None,
        log_dir: Path,
    ) -> None:
        """
        Args:
            url: the daemon's.
            token: that its gateway asks for.
        """
        self._policy = policy
        self._config = config
        self._old_versions = old_versions
        self._environment = {"LIGHTNING_ENDPOINT": url} | ({} if token is None else {"LIGHTNING_TOKEN": token})
        self._log_dir = log_dir
        self._scores: dict[int, float] = {}

    async def refusal(self, candidate: Publication, live: int) -> str | None:
        """Return why a candidate must not go live, None where it may.

        Args:
            live: the version that is served now.
        """
        try:
            live_score = await self._score(live)
            async with self._served(candidate):
                score = await self._score(candidate.version)
        except LightningError as error:
            _log.warning("%s has no held-out score: %s", candidate.name, error)
            return f"its held-out score is not known: {error}"
        scores = f"{score:g}, of {self._policy}@v{live}, which is live, {live_score:g}"
        if score >= live_score - self._config.tolerance:
            _log.info("%s may go live: its held-out score is %s", candidate.name, scores)
            return None
        return f"its held-out score is {scores}, and guard.tolerance is {self._config.tolerance:g}"

    @asynccontextmanager
    async def _served(self, candidate: Publication) -> AsyncIterator[None]:
        """Answer calls for the candidate by its name while the block runs."""
        if candidate.version in self._scores:
            yield
            return
        async with serve_candidate(self._old_versions, candidate, self._config.timeout_s):
            yield

    async def _score(self, version: int) -> float:
        if version not in self._scores:
            self._scores[version] = await held_out_score(
                self._config.command,
                environment={**os.environ, **self._environment, "LIGHTNING_CANDIDATE": f"{self._policy}@v{version}"},
                working_dir=self._config.working_dir,
                log=self._log_dir / "guard.log",
                timeout_s=self._config.timeout_s,
            )
        return self._scores[version]
