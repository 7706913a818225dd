"""The promotion guard: a version that does worse than the live one in the user's held-out evaluation is not served.

During the evaluation the candidate is served as any old version is, as ``POLICY@vN``; it answers no other calls.
"""

import asyncio
import logging
import math
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from lightning_instrumentation.zero_code.environ import beside_proxy

from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.daemon.publication.candidate_serving import serve_candidate
from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.daemon.publication.old_versions import OldVersionEngine
from lightning_trainer.errors import EvaluationError, LightningError
from lightning_trainer.serving.host_processes import end_group
from lightning_trainer.serving.publication import Publication

_log = logging.getLogger(__name__)
_GRACE_S = 5.0
_TAIL_BYTES = 4096


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
            token: the one that its gateway asks for; None: it asks for none.
        """
        self._policy = policy
        self._config = config
        self._old_versions = old_versions
        self._environment = {"LIGHTNING_ENDPOINT": url, **beside_proxy(os.environ, url)}
        if token is not None:
            self._environment["LIGHTNING_TOKEN"] = token
        self._log_dir = log_dir
        self._scores: dict[int, float] = {}

    async def refusal(self, candidate: Publication, live: int) -> str | None:
        """Return why a candidate must not go live; None if it may.

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


async def held_out_score(
    command: Sequence[str], *, environment: Mapping[str, str], working_dir: Path, log: Path, timeout_s: float
) -> float:
    """Run an evaluation and return the number on the last line of its output; none of its processes runs on afterwards.

    Args:
        environment: all variables of the evaluation.
        log: gets what it writes to standard error; its output goes to a file next to that, with the suffix ``.out``.

    Raises:
        EvaluationError: it cannot be run, fails, takes too long, or its last line is not a finite number.
    """
    said = f"the evaluation {' '.join(command)!r}"
    log.parent.mkdir(parents=True, exist_ok=True)
    output = log.with_suffix(".out")
    with output.open("wb") as out, log.open("wb") as err:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=working_dir,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise EvaluationError(f"{said} cannot be run in {working_dir}: {error.strerror}") from error
    try:
        async with asyncio.timeout(timeout_s):
            status = await process.wait()
    except TimeoutError:
        raise EvaluationError(f"{said} took longer than guard.timeout_s = {timeout_s:g} (log: {log})") from None
    finally:
        await asyncio.to_thread(end_group, process.pid, _GRACE_S)
    if status != 0:
        raise EvaluationError(f"{said} ended with status {status} (log: {log})")
    line = _last_line(output)
    try:
        score = float(line)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        raise EvaluationError(f"the last line of {said} is {line!r}; it has to be the score, a finite number")
    return score


def _last_line(output: Path) -> str:
    with output.open("rb") as file:
        file.seek(max(0, output.stat().st_size - _TAIL_BYTES))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
