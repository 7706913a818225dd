"""Attempts in processes of a Ray cluster: for agents that need cores or machines of their own."""

import asyncio
import os
import threading
from contextlib import suppress
from typing import Any

import lightning_instrumentation as lt
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.runtime import running
from lightning_instrumentation.scope import Scope, current, use_scope
from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.errors import MissingExtraError
from lightning_trainer.rollouts.attempt import AttemptFunction, TaskT
from lightning_trainer.rollouts.awaiting import result_of
from lightning_trainer.rollouts.run_name import attempt_label

_FLUSH_S = 30.0
_END_S = 35.0
"""How long after its cancellation a Ray task is killed: it flushes its spans first."""


class OnRay:
    """An attempt that runs as a Ray task: ``Runner(policy, OnRay(attempt, num_cpus=1))``.

    An exception in the attempt is raised here; an attempt that takes too long is cancelled, which frees its cores. The
    caller, who knows the cluster, calls ``ray.init(...)``; otherwise Ray starts one on this machine. Function and task
    are pickled. The process that runs the attempt must reach the daemon at ``endpoint``: by default the one that the
    runner or ``lt.init`` was given, else the one that the environment of that process names.

    Args:
        attempt: ``attempt(task) -> reward``, a function or a coroutine.
        options: options of the Ray task: ``num_cpus``, ``resources``, ``runtime_env`` and so on.
    """

    def __init__(self, attempt: AttemptFunction[TaskT], *, endpoint: str | None = None, **options: Any) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingExtraError("OnRay needs Ray, which is not installed; pip install ray") from error
        self._ray = ray
        # max_retries = 0: a worker that died may have made calls, so only the runner decides about another try.
        self._remote = ray.remote(_run).options(max_retries=0, **options)
        self._attempt = attempt
        self._endpoint = endpoint
        self.run_label = attempt_label(attempt)

    async def __call__(self, task: Any) -> float | None:
        from ray.exceptions import RayError, RayTaskError

        endpoint = self._endpoint or told_endpoint()
        here = current()
        scope = Scope(here.identity, prompts=here.prompts)
        attempted = self._remote.remote(self._attempt, task, scope, endpoint)
        try:
            return await attempted
        except asyncio.CancelledError:
            threading.Thread(target=self._end, args=(attempted,), daemon=True).start()
            raise
        except RayTaskError as error:
            raise error.cause from None
        except RayError as error:
            raise RuntimeError(f"Ray lost the attempt: {error}") from error

    def _end(self, attempted: Any) -> None:
        self._ray.cancel(attempted)
        _, late = self._ray.wait([attempted], timeout=_END_S)
        for task in late:
            self._ray.cancel(task, force=True)


def told_endpoint() -> str | None:
    """Return the endpoint that this process was given in code; None if it is the environment's, since a node's own
    environment may name another way to the daemon."""
    started = running()
    if started is None:
        return None
    with suppress(ConfigurationError):
        if checked_endpoint(os.environ.get("LIGHTNING_ENDPOINT")) == started.settings.endpoint:
            return None
    return started.settings.endpoint


def _run(attempt: AttemptFunction[Any], task: Any, scope: Scope, endpoint: str | None):
    lt.init(endpoint)
    with use_scope(scope):
        try:
            return result_of(attempt(task))
        finally:
            lt.flush(_FLUSH_S)  # Ray ends idle workers without notice
