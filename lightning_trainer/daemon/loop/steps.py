"""One step of a policy, from the attempts that it takes to its record: collect, fill, build, assign, train.

Invariant: a step's batch and the attempts that it consumes are committed in one transaction before the trainer sees
them, so no attempt is ever in two steps.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lightning_trainer.daemon.loop.building import Builder, fresh
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.trained_with import made_for
from lightning_trainer.daemon.loop.weights import Weights
from lightning_trainer.daemon.loop.worklist import Worklist
from lightning_trainer.daemon.watching.progress import Phase
from lightning_trainer.errors import TakenOutError
from lightning_trainer.metrics.row import call_metrics, group_metrics, judge_metrics
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.credit.group_collector import Collection
from lightning_trainer.samples.credit.groups import groups_wanted
from lightning_trainer.samples.problems import nothing_trained
from lightning_trainer.store.records import StepState
from lightning_trainer.types import Attempt

_log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 1.0
"""Group time-outs are noticed this late if few attempts wait; new spans wake the loop at once."""
_REST_AFTER_LOOK = 4.0
"""The rest between two looks at the waiting attempts, whatever comes meanwhile, as a multiple of a look's time."""
_REST_WHEN_IDLE = 200.0
"""The same if nothing comes, so that only a time-out can have passed."""


class Steps:
    """Takes the steps of one policy, each on the weights that the one before it left."""

    def __init__(self, context: LoopContext, weights: Weights) -> None:
        self._policy = context.policy
        self._weights = weights
        self._store = context.store
        self._progress = context.progress
        self._metrics = context.metrics
        self._rollbacks = context.rollbacks
        self._stored = context.stored
        self._judges = context.judges
        self._worklist = Worklist(
            context.policy, store=context.store, progress=context.progress, one_of_several=context.one_of_several
        )
        self._builder = Builder(
            context.policy,
            store=context.store,
            progress=context.progress,
            rollbacks=context.rollbacks,
            stored=context.stored,
            vocabulary=context.vocabulary,
            image_token=context.image_token,
            judges=context.judges,
        )
        self._collecting_since = time.monotonic()

    @property
    def next_step(self) -> int:
        """Return the number of the step that is taken next."""
        return self._weights.step + 1

    async def enroll(self) -> None:
        """Have attempts that end wait for a later step."""
        await self._worklist.enroll()

    async def collect(self) -> Collection:
        """Look once at the attempts that wait."""
        return await self._worklist.collect(self._policy.at_step(self.next_step).algorithm.needs_baseline)

    async def next_attempts(self, groups: int, *, patience_s: float = math.inf) -> tuple[Attempt, ...] | None:
        """Return the attempts of the next step: of ``groups`` groups, or of fewer once no other has come for
        ``patience_s``; None if a rollback or pause comes before that."""
        self._progress.enter(Phase.COLLECTING)
        await self._progress.want_groups(groups)
        self._collecting_since = grew_s = time.monotonic()
        most = 0
        while True:
            self._stored.clear()
            if self._rollbacks.pending is not None or self._rollbacks.changed or self._rollbacks.paused is not None:
                return None
            looking_since = time.monotonic()
            collection = await self.collect()
            took_s = time.monotonic() - looking_since
            if len(collection.ready) > most:
                most, grew_s = len(collection.ready), time.monotonic()
            self._progress.waiting_groups = collection.waiting
            self._progress.waiting_attempts = self._worklist.waiting
            self._progress.ready_groups = len(collection.ready)
            if self._judges is not None:
                # Only those of this step: a judge's budget is for one step.
                self._judges.begin((members for _, members in collection.ready[:groups]), self.next_step)
            if attempts := collection.next_step(groups):
                return attempts
            left_s = grew_s + patience_s - time.monotonic()
            if left_s <= 0:
                return collection.next_step(min(groups, len(collection.ready)))
            # However many attempts wait, looking through them may take only a small share of the time.
            await asyncio.sleep(_REST_AFTER_LOOK * took_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, max(_LOOK_AGAIN_S, _REST_WHEN_IDLE * took_s))):
                    await self._stored.wait()

    async def take(self, attempts: tuple[Attempt, ...]) -> None:
        """Take a step on these attempts, filled up if the algorithm asks for it. Take none if the loop is called away,
        or if some attempts were taken out while the batch was built: then the loop looks again at what waits."""
        collecting_since, began = self._collecting_since, time.monotonic()
        filled = await self.filled((*attempts, *self._worklist.dropped), self.next_step)
        if filled is None:
            return
        attempts, build = filled
        metrics = {
            **group_metrics(build.groups),
            **call_metrics(build.calls),
            **({} if self._judges is None else await self._judges.metrics(self.next_step)),
            **judge_metrics(build.corrections),
            **({"reward/deviation_floor": build.deviation_floor} if build.deviation_floor else {}),
            **(sampling_metrics(build.batch, await self._weights.served(), self._weights.path) if build.batch else {}),
            "attempts/incomplete": self._worklist.gave_up_on(attempts),
        }
        seconds = {"rollout": began - collecting_since, "build": time.monotonic() - began}
        try:
            await self.train(build, metrics, attempts=attempts, seconds=seconds)
        except TakenOutError as error:
            _log.info("%s", error)

    async def train(
        self,
        build: Build,
        metrics: Mapping[str, float],
        *,
        attempts: Sequence[Attempt] = (),
        seconds: Mapping[str, float] | None = None,
    ) -> None:
        """Record the next step, train its batch if it has one, and publish the new weights."""
        step = self.next_step
        batch = None if build.batch is None else replace(build.batch, made_for=made_for(self._policy, step))
        for problem in build.problems:
            self._progress.say(problem)
        await self._progress.want_groups(self._policy.groups_per_step)
        await self._store.assign(
            batch,
            policy=self._policy.name,
            step=step,
            attempt_ids=[attempt.attempt_id for attempt in attempts],
            ledger=build.ledger,
            state=StepState.ASSIGNED if batch else StepState.SKIPPED,
            metrics={**metrics, **await self._store.measures()},
        )
        self._weights.step = step
        if self._judges is not None:
            self._judges.taken(attempts)
        if batch is None:
            self._progress.say(f"step {step} trained nothing: {nothing_trained(build.groups)}")
        else:
            await self._weights.train(batch, seconds or {})
        await self._metrics.step_ended(step)
        await self._progress.finish_step(step)

    async def filled(self, attempts: tuple[Attempt, ...], step: int) -> tuple[tuple[Attempt, ...], Build] | None:
        """Build the step, with further groups while the algorithm asks for them and any come; assign nothing.

        Return None if a rollback or a pause is asked for meanwhile.
        """
        taken, patience_s, no_more = self._policy.groups_per_step, self._policy.group_timeout_s, False
        while True:
            self._progress.enter(Phase.BUILDING, f"step {step}")
            versions = fresh(await self._weights.served(), self._weights.path, self._policy.max_staleness)
            build = await self._builder.build(attempts, step, versions)
            if build is None:
                return None
            wanted = groups_wanted(self._policy.at_step(step), taken, build.groups)
            if no_more or wanted == taken:
                return attempts, build
            more = await self.next_attempts(wanted, patience_s=patience_s)
            if more is None:
                return None
            came = max(0, len({attempt.group_id for attempt in more}) - taken)
            no_more = came < wanted - taken
            if no_more:
                until = f"{came} came until " if came else ""
                self._progress.say(
                    f"step {step}: dynamic sampling asked for {wanted - taken} more groups, and {until}none came "
                    f"within group_timeout_s = {patience_s:g}; the step goes on with what it has"
                )
            if not came:
                return attempts, build
            attempts, taken = (*more, *self._worklist.dropped), taken + came
