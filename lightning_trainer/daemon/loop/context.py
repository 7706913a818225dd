"""What every part of one policy's training loop works with: the policy, its store, and whom the loop tells."""

import asyncio
from dataclasses import dataclass

from lightning_trainer.config import PolicyConfig
from lightning_trainer.daemon.api.rollback import RollbackRequests
from lightning_trainer.daemon.rewards.judges import PolicyJudges
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.metrics.recorder import MetricsRecorder
from lightning_trainer.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopContext:
    """The context of one policy's loop, for as long as it runs.

    The loop hands it on whole: to ``Weights``, which moves the trainer's weights, and to ``Steps``, which takes
    attempts and builds their batch.
    """

    policy: PolicyConfig
    store: Store
    """The daemon's; other daemons may share it, and other policies do."""
    progress: Progress
    """What people see of the loop, and what attempts wait for."""
    metrics: MetricsRecorder
    """Told of every step that has ended."""
    rollbacks: RollbackRequests
    """What people ask of the loop."""
    stored: asyncio.Event
    """Set when spans are committed; the loop clears it."""
    one_of_several: bool = False
    """Whether other policies have loops over the same store; attempts that they alone answered are theirs."""
    vocabulary: int | None = None
    """Entries of the model's vocabulary; None if it is not known."""
    image_token: int | None = None
    """What stands for images in the model's prompts; None: the model sees none."""
    judges: PolicyJudges | None = None
    """Give rewards that attempts lack; None: there are no judges."""
