"""Whether a store still works after strangers wrote to it: the loop's own collecting and building, on all of it."""

import asyncio
from collections.abc import Sequence
from typing import Any

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.loop.building import Builder
from lightning_trainer.daemon.loop.context import LoopContext
from lightning_trainer.daemon.loop.training_loop import TrainingLoop
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import Attempt

_GROUPS_A_STEP = 8


async def taken_by_the_loop(store: SqliteStore, policy: PolicyConfig, good: Sequence[str]) -> tuple[int, str]:
    """Return how many good attempts are in samples of steps that the loop would make, and a sentence on all groups."""
    nothing: Any = None
    stored, progress = asyncio.Event(), Progress()
    rollbacks = RollbackRequests(wake=stored)
    loop = TrainingLoop(
        LoopContext(
            policy=policy,
            store=store,
            progress=progress,
            metrics=nothing,
            rollbacks=rollbacks,
            stored=stored,
        ),
        trainer=nothing,
        publisher=nothing,
        checkpoints=nothing,
    )
    builder = Builder(policy, store=store, progress=progress, rollbacks=rollbacks, stored=stored, vocabulary=1024)
    collection = await loop.steps.collect()
    groups: list[tuple[Attempt, ...]] = [attempts for _, attempts in collection.ready]
    sampled: set[str] = set()
    aside: list[str] = []
    for start in range(0, len(groups), _GROUPS_A_STEP):
        attempts = [attempt for group in groups[start : start + _GROUPS_A_STEP] for attempt in group]
        build = await builder.build(attempts, 1 + start // _GROUPS_A_STEP)
        assert build is not None
        aside += [sentence for group in build.groups if (sentence := group.refused_reason)]
        if build.batch is not None:
            sampled |= {
                part.attempt_id or sample.attempt_id for sample in build.batch.samples for part in sample.segments
            }
    others = f"{len(groups):,} groups in all; {len(aside):,} refused or set aside"
    return len(sampled & set(good)), others
