"""What the daemon is doing right now: set by the training loop, read by the status routes."""

import asyncio
import time
from enum import StrEnum


class Phase(StrEnum):
    """What the daemon is doing with a policy."""

    STARTING = "starting"
    COLLECTING = "collecting"
    BUILDING = "building"
    TRAINING = "training"
    PUBLISHING = "publishing"
    RECOVERING = "recovering"
    WAITING = "waiting"
    """Store (a full disk, another program's lock), engine or trainer cannot be used; it is tried again and again."""
    PAUSED = "paused"
    """Training has stopped and says why; serving and capture go on."""
    HELD = "held"
    """Someone paused training (``lightning-trainer pause``) until they resume it; serving and capture go on."""
    FOLLOWING = "following"
    """Another daemon of the same store trains the policy; this one records and serves what that one publishes."""
    FINISHED = "finished"
    SERVING = "serving"
    """The policy is recorded and served and never trained (``train = false``)."""


class Progress:
    """The loop's current phase and its count of finished steps; waiting for the next step costs nothing."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.detail = ""
        self.since = time.time()
        self.steps_done = 0
        self.waiting_groups: dict[str, int] = {}
        self.waiting_attempts = 0
        """Ended attempts that the next steps may take, in whatever groups."""
        self.ready_groups = 0
        self.groups_wanted = 0
        """How many groups the current step takes; dynamic sampling raises it. 0 before the first one."""
        self.held_attempts: dict[str, int] = {}
        """Ended attempts that lack spans, and how many each lacks."""
        self.problems: list[str] = []
        self.late_rewards = 0
        """Attempts that got a reward when they were in a step already."""
        self._changed = asyncio.Condition()

    def enter(self, phase: Phase, detail: str = "") -> None:
        """Change the phase and its detail, and restart its clock."""
        self.phase, self.detail, self.since = phase, detail, time.time()

    def say(self, problem: str) -> None:
        """Keep a sentence for readers of the status; the newest 50 stay."""
        if problem not in self.problems:
            self.problems = [*self.problems, problem][-50:]

    async def finish_step(self, steps_done: int) -> None:
        """Set the number of finished steps, and wake those who wait for it."""
        async with self._changed:
            self.steps_done = steps_done
            self._changed.notify_all()

    async def wake_waiters(self) -> None:
        """Wake those who wait for a step, because there will be none."""
        async with self._changed:
            self._changed.notify_all()

    async def want_groups(self, groups: int) -> None:
        """Set how many groups the current step takes, and wake those who wait for it to take more."""
        async with self._changed:
            self.groups_wanted = groups
            self._changed.notify_all()

    async def wait_for_step(self, steps_done: int, timeout_s: float, *, groups_wanted: int | None = None) -> None:
        """Return when that many steps are done, when more than ``groups_wanted`` are wanted for the current one, when
        training has stopped, or after the time-out."""
        over = (Phase.PAUSED, Phase.FINISHED, Phase.SERVING)
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(
                    lambda: (
                        self.steps_done >= steps_done
                        or self.phase in over
                        or (groups_wanted is not None and self.groups_wanted > groups_wanted)
                    )
                )
        except TimeoutError:
            return
