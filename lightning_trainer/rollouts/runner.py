"""Synchronous steps: run every attempt of the step's groups, wait until the daemon has trained and published, go on.

An interrupted run goes on where it was: the daemon says how many steps are done and which groups are half full.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic

import lightning_instrumentation as lightning

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.attempt import Task, TaskT, run_attempt
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.events import AttemptEnded, Event, StepEnded

__all__ = ["Runner", "Task"]


class Runner(Generic[TaskT]):
    """Runs ``attempt(task) -> reward`` for many tasks at once.

    ``attempt`` returns the reward of the attempt (None: nothing scored it). It may raise; the attempt has failed then
    and the run goes on. ``timeout_s`` is the limit of one attempt.
    """

    def __init__(
        self,
        policy: str,
        attempt: Callable[[TaskT], float | None],
        *,
        endpoint: str | None = None,
        concurrency: int = 64,
        timeout_s: float = 120.0,
        on_event: Callable[[Event], None] = lambda event: None,
    ) -> None:
        lightning.init(endpoint)
        self._daemon = DaemonClient(
            endpoint or os.environ.get("LIGHTNING_ENDPOINT", "http://127.0.0.1:8321"),
            policy,
            token=os.environ.get("LIGHTNING_TOKEN"),
        )
        self._attempt = attempt
        self._concurrency = concurrency
        self._timeout_s = timeout_s
        self._on_event = on_event

    def train(self, tasks_of_step: Callable[[int], Sequence[TaskT]], *, steps: int) -> None:
        """Run steps ``1 .. steps``, each over ``tasks_of_step(step)`` with ``group_size`` attempts a task.

        Raises:
            LightningError: the tasks do not make the step that the daemon waits for, or the daemon stays away.
            TrainingError: training stopped before the last step.
        """
        status = self._daemon.policy()
        for step in range(status["steps_done"] + 1, steps + 1):
            tasks = tasks_of_step(step)
            if len({task.id for task in tasks}) != status["groups_per_step"]:
                raise LightningError(
                    f"step {step} has {len({task.id for task in tasks})} different tasks, but the policy's "
                    f"groups_per_step is {status['groups_per_step']}; make them equal"
                )
            # Group ids carry the step: the same task met again later is another comparison.
            group_of = {task.id: f"step-{step}/{task.id}" for task in tasks}
            already = status["waiting_groups"]
            began = time.monotonic()
            ended = self._run(
                [
                    (task, group_of[task.id])
                    for task in tasks
                    for _ in range(max(0, status["group_size"] - already.get(group_of[task.id], 0)))
                ],
                stage="train",
                step=step,
                mode="train",
            )
            lightning.flush(30.0)
            rolled_out = time.monotonic()
            status = self._daemon.wait_for_step(step)
            rewards = [attempt.reward for attempt in ended if attempt.reward is not None]
            self._on_event(
                StepEnded(
                    step,
                    sum(rewards) / len(rewards) if rewards else None,
                    status["live_version"],
                    rolled_out - began,
                    time.monotonic() - rolled_out,
                )
            )

    def evaluate(self, tasks: Sequence[TaskT], *, stage: str) -> list[AttemptEnded]:
        """Run one attempt a task that is recorded and never trained; results in the order of the tasks."""
        ended = self._run([(task, f"{stage}/{task.id}") for task in tasks], stage=stage, step=None, mode="evaluate")
        lightning.flush(30.0)
        return ended

    def _run(self, work: Sequence[tuple[TaskT, str]], *, stage: str, step: int | None, mode: str) -> list[AttemptEnded]:
        queue: SimpleQueue[tuple[Future[AttemptEnded], TaskT, str] | None] = SimpleQueue()
        futures: list[Future[AttemptEnded]] = []
        for task, group_id in work:
            future: Future[AttemptEnded] = Future()
            futures.append(future)
            queue.put((future, task, group_id))

        def worker() -> None:
            while (entry := queue.get()) is not None:
                future, task, group_id = entry
                ended = run_attempt(
                    self._attempt,
                    task,
                    stage=stage,
                    step=step,
                    group_id=group_id,
                    mode=mode,
                    timeout_s=self._timeout_s,
                )
                self._on_event(ended)
                future.set_result(ended)

        for _ in range(min(self._concurrency, len(work))):
            queue.put(None)
            # Daemon threads: an interrupted run must not wait for a hanging tool.
            threading.Thread(target=worker, daemon=True).start()
        return [future.result() for future in futures]
