"""Building a step's batch from what the store holds of its attempts, again and again while rewards may still come."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.rewards.judges import PolicyJudges
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.errors import DamagedStoreError, StoreError
from lightning_trainer.ingest.reading import Reading, read_spans
from lightning_trainer.metrics.row import DEVIATION
from lightning_trainer.samples.batches import Build, build_batch
from lightning_trainer.samples.credit.groups import GroupSummary, moving_floor
from lightning_trainer.samples.group_credit import quarantined
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.samples.transitions.causes import span_parents
from lightning_trainer.samples.transitions.eligibility import KeptImages
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.store.media.exchange import SCHEME
from lightning_trainer.store.media.table import digests_of
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables.steps import select_measure
from lightning_trainer.store.worklist import drops
from lightning_trainer.types import Attempt, Call, RolloutMode, Span

_log = logging.getLogger(__name__)

# How old a sampled token is: the versions that have gone live since the one that sampled it.
#
# Counted in what was served and not in optimizer steps, because no call sampled from a version that the engine
# refused, and a step that trained nothing has no version. What a rollback took back does not count either.


def served(versions: Iterable[int], path: Container[int]) -> tuple[int, ...]:
    """Return the versions that the present weights are made of, ascending.

    Args:
        versions: those that are or were live.
        path: the versions that the present weights are made of.
    """
    return tuple(sorted(version for version in versions if version in path))


def fresh(served: Sequence[int], path: Iterable[int], max_staleness: int | None) -> frozenset[int] | None:
    """Return the versions whose tokens are not stale: those of the newest served one have staleness 0. None: all.

    A version that a rollback took back is always stale: the present weights never came from it. One that was not
    served, because a canary or a guard held it back, is as fresh as those around it.

    Args:
        served: versions that the present weights are made of, ascending.
        path: the same, served or not.
    """
    if max_staleness is None:
        return None
    oldest = 0 if len(served) <= max_staleness else served[-1 - max_staleness]
    return frozenset(version for version in path if version >= oldest)


_STEPS_REMEMBERED = 1000
"""Steps that the moving average of deviations is made of; older ones no longer show in it."""


_REST_AFTER_BUILD = 4.0
"""The rest between two builds, whatever is stored meanwhile, as a multiple of a build's time."""
_LOOK_UP_S = 0.5


class Builder:
    """Builds a step's batch. Assigns no attempts, so the result may be discarded."""

    def __init__(
        self,
        policy: PolicyConfig,
        *,
        store: Store,
        progress: Progress,
        rollbacks: RollbackRequests,
        stored: asyncio.Event,
        vocabulary: int | None = None,
        image_token: int | None = None,
        judges: PolicyJudges | None = None,
    ) -> None:
        """
        Args:
            vocabulary: entries of the model's vocabulary; None if it is not known.
            image_token: what stands for images in the model's prompts; None: the model sees none.
            judges: give rewards that the attempts lack; None: there are no judges.
        """
        self._policy = policy
        self._store = store
        self._progress = progress
        self._rollbacks = rollbacks
        self._stored = stored
        self._vocabulary = vocabulary
        self._image_token = image_token
        self._judges = judges

    async def build(
        self, attempts: Sequence[Attempt], step: int, versions: Container[int] | None = None
    ) -> Build | None:
        """Build the step, and build it again when spans arrive, while rewards are missing that may still come.

        Return None if a rollback or a pause is asked for meanwhile, or the loop has to look at the records again.
        Groups that cannot be built are set aside, and the others are built.

        Args:
            versions: those whose tokens are not stale (``fresh``); None: all.

        Raises:
            StoreError: the store cannot be read.
        """
        if self._judges is not None:
            await self._judges.wait(attempts, step, self._is_called_away)
            if self._is_called_away():
                return None
        # A program whose clock runs ahead may say that its attempt ends in the future; the wait ends by our clock.
        ended_ns = min(max(attempt.ended_ns or 0 for attempt in attempts), time.time_ns())
        wait_until_ns = ended_ns + int(self._policy.reward_wait_s * 1e9)
        while True:
            self._stored.clear()
            began = time.monotonic()
            build = await self._without_poison(attempts, step, versions)
            rests_until = time.monotonic() + _REST_AFTER_BUILD * (time.monotonic() - began)
            left_s = (wait_until_ns - time.time_ns()) / 1e9
            if not build.unscored or left_s <= 0:
                return build
            self._progress.enter(Phase.BUILDING, f"step {step}: waiting for rewards of {len(build.unscored)} attempts")
            if not self._is_called_away():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(left_s):
                        await self._stored.wait()
                        await self._rest(rests_until)
            if self._is_called_away():
                return None

    async def _rest(self, until: float) -> None:
        """Wait until that time (``time.monotonic``), unless the loop is called away."""
        while (left_s := until - time.monotonic()) > 0 and not self._is_called_away():
            await asyncio.sleep(min(left_s, _LOOK_UP_S))

    def _is_called_away(self) -> bool:
        return self._rollbacks.pending is not None or self._rollbacks.changed or self._rollbacks.paused is not None

    async def _without_poison(self, attempts: Sequence[Attempt], step: int, versions: Container[int] | None) -> Build:
        """Build; when that ends in an error, find the groups that it comes from, and build the others."""
        try:
            return await self._once(attempts, step, versions)
        except DamagedStoreError as error:
            _log.error("step %d: %s; looking for the groups whose spans lie there", step, error)
        except StoreError:
            raise
        except Exception:
            _log.exception("step %d cannot be built as it is; looking for the groups that this comes from", step)
        groups: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            groups.setdefault(attempt.group_id, []).append(attempt)
        sound: list[Attempt] = []
        aside: list[GroupSummary] = []
        for group_id, members in groups.items():
            try:
                await self._once(members, step, versions)
            except StoreError as error:
                if not isinstance(error, DamagedStoreError):
                    raise
                aside.append(_set_aside(group_id, members, error))
            except Exception as error:
                aside.append(_set_aside(group_id, members, error))
            else:
                sound += members
        build = await self._once(sound, step, versions)
        sentences = [sentence for group in aside if (sentence := group.refused_reason) is not None]
        return replace(build, groups=(*build.groups, *aside), problems=(*sentences, *build.problems))

    async def _once(self, attempts: Sequence[Attempt], step: int, versions: Container[int] | None) -> Build:
        attempts = await self._as_they_are(attempts)
        spans = await self._store.spans_of_attempts([attempt.attempt_id for attempt in attempts])
        corrections = {} if self._judges is None else await self._judges.corrections(step)
        floor = await self._deviation_floor(step)
        reading = await asyncio.to_thread(read_spans, spans)
        images = await self._kept_images(reading.calls)
        return await asyncio.to_thread(
            self._build, spans, reading, attempts, step, versions, corrections, floor, images
        )

    async def _as_they_are(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        """Return the attempts, those marked that someone has taken out since: a step may wait long for rewards."""
        ids = [attempt.attempt_id for attempt in attempts]
        out = await self._store.scan(lambda connection: drops.among(connection, ids))
        return [replace(one, mode=RolloutMode.DROPPED) if one.attempt_id in out else one for one in attempts]

    async def _kept_images(self, calls: Sequence[Call]) -> KeptImages | None:
        """Return which images of the calls are kept; None for a model that sees none."""
        if self._image_token is None:
            return None
        asked = digests_of(media for call in calls for media in call.media)
        return KeptImages(self._image_token, {f"{SCHEME}{one}" for one in await self._store.media_kept(asked)})

    def _policy_of(self, step: int) -> PolicyConfig:
        policy = self._policy.at_step(step)
        # A model that reads text alone cannot be trained on an image, no matter who answered the call.
        return policy if self._image_token is not None else policy.model_copy(update={"non_text": "drop"})

    async def _deviation_floor(self, step: int) -> float:
        """Return the floor that follows from the records of the stage's earlier steps, so that a restarted daemon has
        the same one; another stage's rewards may be on another scale."""
        algorithm, stage = self._policy.at_step(step).algorithm, self._policy.stage_at(step)
        if algorithm.deviation_floor is None:
            return 0.0
        deviations = await self._store.scan(
            lambda connection: select_measure(
                connection,
                self._policy.name,
                DEVIATION,
                since=1 if stage is None else stage[0],
                before=step,
                newest=_STEPS_REMEMBERED,
            )
        )
        return moving_floor(deviations, algorithm.deviation_floor, algorithm.deviation_decay)

    def _build(
        self,
        spans: Sequence[Span],
        reading: Reading,
        attempts: Sequence[Attempt],
        step: int,
        versions: Container[int] | None,
        corrections: Mapping[str, Correction],
        deviation_floor: float,
        images: KeptImages | None,
    ) -> Build:
        build = build_batch(
            reading.calls,
            attempts,
            reading.evaluations,
            self._policy_of(step),
            step,
            span_parents=span_parents(spans),
            versions=versions,
            vocabulary=self._vocabulary,
            corrections=corrections,
            deviation_floor=deviation_floor,
            images=images,
        )
        return replace(build, problems=(*reading.problems, *build.problems))


def _set_aside(group_id: str, members: Sequence[Attempt], error: Exception) -> GroupSummary:
    return GroupSummary(
        group_id=group_id,
        task_id=None,
        size=len(members),
        comparable=0,
        rewards=(None,) * len(members),
        verdict=Reason.QUARANTINED,
        refused_reason=quarantined(group_id, error),
    )
