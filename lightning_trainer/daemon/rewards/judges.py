"""Judges at work for one policy: asked as soon as a group is complete, and waited for before its step is built.

A step waits for a judge ``wait_s`` at most. A later verdict is stored; without a verdict the reward is missing, and a
sentence says why. An error in a judge never becomes one in the loop. While a canary holds training back, the judges are
asked about its rollouts instead.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from lightning_trainer.config import DaemonConfig, PolicyConfig
from lightning_trainer.config.judges import AgentCreditConfig, AnyJudge, ModelJudge
from lightning_trainer.daemon.watching.progress import Phase, Progress
from lightning_trainer.ingest.redacting import RedactingSink
from lightning_trainer.judges.judging import Judged, Judging
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import key_that_lacks
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.reliability.report import corrections, judge_report
from lightning_trainer.judges.scoring_engine import EngineOf
from lightning_trainer.samples.rewards.reliability import Correction
from lightning_trainer.store.store import Store
from lightning_trainer.types import Attempt, AttemptState, RolloutMode, SpanSink

_log = logging.getLogger(__name__)


class CanaryJudges:
    """A policy's judges at work for one canary, with their budgets: a canary asks a thousand times, so only the first
    reason why a judge's reward is missing is said."""

    def __init__(self, judges: Collection[Judging], store: Store, say: Callable[[str], None]) -> None:
        self._judges = judges
        self._store = store
        self._say = say
        self._budgets = {judging.name: budget_of(judging) for judging in judges}
        self._failed: set[str] = set()

    def __len__(self) -> int:
        return len(self._judges)

    @property
    def spent(self) -> str | None:
        """Return which judge may not spend what its next question could cost, and why; None if each may."""
        for name, budget in self._budgets.items():
            if budget.refusal is not None:
                return f"judge {name}, {budget.refusal}"
        return None

    async def ask(self, attempts: Sequence[Attempt]) -> None:
        """Ask all judges about attempts; an error is said, and costs no more than the reward."""
        for judging in self._judges:
            sentence = await ask_judge(judging, self._store, attempts, self._budgets[judging.name])
            if sentence is not None and judging.name not in self._failed:
                self._failed.add(judging.name)
                self._say(sentence)
                _log.warning("%s", sentence)


_LOOK_AGAIN_S = 1.0
"""While a step waits for a judge, a rollback that is asked for is noticed this late at most."""


@asynccontextmanager
async def judges_at_work(
    judges: Iterable[AnyJudge], daemon: DaemonConfig, *, store: Store, sink: SpanSink, engine_of: EngineOf
) -> AsyncIterator[dict[str, Judging]]:
    """Yield the judges by name; all policies of a daemon share them, so that nothing is asked twice.

    Args:
        daemon: says how what judges write is redacted.
        engine_of: for judges that ask a policy's own engine.
    """
    redacting = RedactingSink.of(daemon, sink)
    at_work = {judge.name: Judging(make_judge(judge, engine_of), redacting, store.spans_of_trace) for judge in judges}
    try:
        yield at_work
    finally:
        for judging in at_work.values():
            await judging.close()


class PolicyJudges:
    """The judges that a policy's rewards name; they are asked about each attempt once in a run of the daemon."""

    def __init__(
        self, policy: PolicyConfig, judges: Mapping[str, Judging], *, store: Store, progress: Progress
    ) -> None:
        self._policy = policy
        self._judges = judges
        self._store = store
        self._progress = progress
        self._asked: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By judge and attempt."""
        self._budgets: dict[str, Budget] = {}
        for name in judges_of(policy.all_reward_names, judges):
            if (sentence := key_that_lacks(judges[name].judge.config)) is not None:
                self._say(sentence)

    def begin(self, groups: Iterable[Sequence[Attempt]], step: int) -> None:
        """Begin to judge groups that are complete. An attempt that joins one after that is judged when the step waits:
        else a judge of whole groups would be asked about all of a popular group for each attempt that joins it."""
        begun = {attempt_id for _, attempt_id in self._asked}
        self._ask([group for group in groups if begun.isdisjoint(one.attempt_id for one in group)], step)

    async def wait(self, attempts: Sequence[Attempt], step: int, give_up: Callable[[], bool]) -> None:
        """Return when the judges are done with the attempts, when their ``wait_s`` is over, or on ``give_up``."""
        groups: dict[str, list[Attempt]] = {}
        for attempt in attempts:
            groups.setdefault(attempt.group_id, []).append(attempt)
        self._ask(groups.values(), step)
        began = time.monotonic()
        for name, judging in self._judges.items():
            ids = [one.attempt_id for one in attempts if (name, one.attempt_id) in self._asked]
            wait_s = judging.judge.config.wait_s
            while open_ids := [one for one in ids if not self._asked[name, one].done()]:
                left_s = wait_s - (time.monotonic() - began)
                if give_up():
                    return
                if left_s <= 0:
                    self._say(
                        f"step {step} did not wait longer than wait_s = {wait_s:g} for judge {name}, and "
                        f"{len(open_ids)} of its attempts lack its reward (such as {open_ids[0]}); raise wait_s or "
                        "concurrency, or lower timeout_s and retries"
                    )
                    break
                self._progress.enter(
                    Phase.BUILDING, f"step {step}: waiting for judge {name} of {len(open_ids)} attempts"
                )
                await asyncio.wait({self._asked[name, one] for one in open_ids}, timeout=min(left_s, _LOOK_AGAIN_S))

    async def corrections(self, step: int) -> dict[str, Correction]:
        """Return how the rewards of judges are corrected in a step, by what is known of the judges now.

        Raises:
            StoreError: the store cannot be read.
        """
        names = self._policy.at_step(step).corrected_rewards & self._judges.keys()
        if not names:
            return {}
        configs = [judging.judge.config for judging in self._judges.values()]
        return await self._store.scan(lambda connection: corrections(connection, names, configs))

    async def metrics(self, step: int) -> dict[str, float]:
        """Return how reliable the judges of a step are, for those that are checked against something.

        Raises:
            StoreError: the store cannot be read.
        """
        named = self._policy.at_step(step).reward_weights
        checked = [one.judge.config for name, one in self._judges.items() if name in named]
        checked = [config for config in checked if config.checked_by]
        if not checked:
            return {}
        reports = await self._store.scan(lambda connection: [judge_report(connection, one) for one in checked])
        return {name: value for report in reports for name, value in report.metrics().items()}

    def taken(self, attempts: Iterable[Attempt]) -> None:
        """Forget attempts that a step has taken, and begin with new budgets."""
        for attempt in attempts:
            for name in self._judges:
                self._asked.pop((name, attempt.attempt_id), None)
        self._budgets.clear()

    async def close(self) -> None:
        """Stop the judging that is under way."""
        tasks = set(self._asked.values())
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def _ask(self, groups: Collection[Sequence[Attempt]], step: int) -> None:
        """Ask the step's judges about those attempts of the groups that they were not asked about."""
        wanted = self._policy.at_step(step)
        for judging in [self._judges[name] for name in judges_of(wanted.reward_weights, self._judges)]:
            for group in groups:
                members = [attempt for attempt in group if _can_be_trained(attempt, wanted)]
                new = [one for one in members if (judging.name, one.attempt_id) not in self._asked]
                if new:
                    asked = members if judging.judge.config.of_groups else new
                    # First come the verdicts of the judge whose reward this one shares out, and this judge's own on
                    # fewer attempts of the group.
                    before = [(name, one.attempt_id) for name in (_shared_out(judging), judging.name) for one in asked]
                    first = {task for name in before if (task := self._asked.get(name)) is not None}
                    task = asyncio.create_task(self._judge(judging, asked, first), name=f"judge {judging.name}")
                    self._asked |= {(judging.name, one.attempt_id): task for one in asked}

    async def _judge(
        self, judging: Judging, attempts: Sequence[Attempt], first: Collection[asyncio.Task[None]]
    ) -> None:
        """Have attempts judged once the tasks in ``first`` are done."""
        if first:
            await asyncio.wait(first)
        budget = self._budgets.setdefault(judging.name, budget_of(judging))
        if (sentence := await ask_judge(judging, self._store, attempts, budget)) is not None:
            self._say(sentence)

    def _say(self, sentence: str) -> None:
        self._progress.say(sentence)
        _log.warning("%s", sentence)


def budget_of(judging: Judging) -> Budget:
    """Return a new budget of a judge for a step or a canary."""
    config = judging.judge.config
    return Budget(config.budget if isinstance(config, ModelJudge) else None)


async def ask_judge(judging: Judging, store: Store, attempts: Sequence[Attempt], budget: Budget) -> str | None:
    """Have attempts of one group judged, and the verdicts stored; return a sentence if one of them got no reward."""
    try:
        spans = await store.spans_of_attempts([attempt.attempt_id for attempt in attempts])
        judged = await judging.judge_group(spans, attempts, budget, renew=True)
    except Exception as error:
        _log.exception("judge %s ended in an error", judging.name)
        return f"judge {judging.name} ended in an error, and attempts lack its reward: {type(error).__name__}: {error}"
    missing = [one for one in judged if one.value is None]
    return f"judge {judging.name} gave {_no_reward(missing, judged)}" if missing else None


def judges_of(rewards: Iterable[str], judges: Mapping[str, Judging]) -> list[str]:
    """Return the names of the judges that give these rewards, after those whose rewards they share out."""
    named = [name for name in rewards if name in judges]
    outcomes = [outcome for name in named if (outcome := _shared_out(judges[name])) in judges]
    return list(dict.fromkeys((*outcomes, *named)))


def _shared_out(judging: Judging) -> str:
    """Return the name of the evaluation that a judge shares out; "" if it judges by itself."""
    config = judging.judge.config
    return (config.outcome or "") if isinstance(config, AgentCreditConfig) else ""


def _can_be_trained(attempt: Attempt, policy: PolicyConfig) -> bool:
    """Whether an attempt may be trained: judges cost, and one that is not trained whatever they say needs none."""
    if attempt.state is AttemptState.RUNNING or attempt.mode not in (RolloutMode.TRAIN, RolloutMode.BASELINE):
        return False
    return attempt.state is not AttemptState.FAILED or policy.failed_attempts == "train"


def _no_reward(missing: Sequence[Judged], judged: Sequence[Judged]) -> str:
    which = f"attempt {missing[0].attempt_id}"
    if len(missing) > 1:
        which = f"{len(missing)} of {len(judged)} attempts (such as {missing[0].attempt_id})"
    return f"no reward to {which}: {missing[0].reason}"
