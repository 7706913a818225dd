"""What every part of one policy's training loop works with: whose records, who is told, and what its model can read."""

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
    """Of one policy, for as long as its loop runs.

    The loop hands it on whole: to what moves the trainer's weights (``Weights``), and to what takes attempts and builds
    their batch (``Steps``).
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
    """Other policies have loops over the same store; attempts that they alone answered are theirs."""
    vocabulary: int | None = None
    """Entries of the model's; None where it is not known."""
    image_token: int | None = None
    """What stands for images in the model's prompts; None: it sees none."""
    judges: PolicyJudges | None = None
    """Give rewards that attempts lack; None: nobody does."""
