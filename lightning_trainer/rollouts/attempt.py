"""One attempt: the agent's code, run as a rollout with a time limit; an exception in it is data, not a crash."""

import contextvars
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import lightning_instrumentation as lt
from lightning_instrumentation.reward import LARGEST_REWARD, number_of
from lightning_instrumentation.rollout import RunRollout

from lightning_trainer.rollouts.awaiting import is_async, result_of

_SHOWN = 200
"""How many characters an error shows of a value that is not a reward."""

# The events that a runner passes to its ``on_event``.


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """An attempt has ended, with a reward, with an error, or with neither."""

    stage: str
    """``train``, ``baseline``, or the name of an evaluation; ``retried`` if another attempt is made in its place."""
    step: int | None
    task_id: str
    reward: float | None
    seconds: float
    error: str | None
    attempt_id: str = ""


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A step has ended: its rollouts, and the daemon's training on them."""

    step: int
    reward_mean: float | None
    live_version: int | None
    rollout_s: float
    """Seconds from the end of the previous step, or the start of the run, to the end of the last attempt since then."""
    wait_s: float
    """Seconds from then until the daemon had trained and published."""


Event: TypeAlias = AttemptEnded | StepEnded


def as_json(event: Event) -> dict[str, Any]:
    """Return the event's fields, with its class name under ``event``."""
    return {"event": type(event).__name__, **asdict(event)}


class Task(Protocol):
    """Anything with an id that is unique among the tasks of a run.

    An attribute ``input``, if there is one, is recorded as the rollout's input, as JSON. Judges read it, so a reference
    answer that the agent must not see belongs there.
    """

    @property
    def id(self) -> str: ...


TaskT = TypeVar("TaskT", bound=Task | Mapping[str, Any])
"""The type of the tasks that a runner is given."""
NamedT = TypeVar("NamedT", bound=Task)
"""The type of the tasks that attempts are made at: a mapping has been given a name by then."""
ResultT = TypeVar("ResultT")
Reward: TypeAlias = float | None
AttemptFunction: TypeAlias = Callable[[TaskT], Reward | Awaitable[Reward]]


def run_attempt(
    attempt: AttemptFunction[NamedT],
    task: NamedT,
    *,
    stage: str,
    step: int | None,
    group_id: str,
    mode: str,
    timeout_s: float,
    replaced: Callable[[bool], bool] = lambda failed: False,
    policies: Sequence[str] = (),
) -> AttemptEnded:
    """Run ``attempt(task)`` as one rollout, awaiting what it returns if necessary, and record the number that it gives
    as the reward.

    ``replaced(failed)`` is called when the attempt has returned or raised; if it says that another attempt is made in
    its place, this one is recorded as retried. Its group is the ``policies``', even if they answer no call in it.
    """
    began = time.monotonic()
    # One id for both: calls made through a rollout's URL do not name an attempt.
    name = uuid.uuid4().hex
    reward: float | None = None
    error: str | None = None
    try:
        asked = getattr(task, "input", None)
        with RunRollout(
            task.id,
            group_id=group_id,
            rollout_id=name,
            attempt_id=name,
            mode=mode,
            input=asked,
            policies=policies,
        ) as rollout:
            failed = True
            try:
                given = _within(attempt, task, timeout_s)
                failed = False
            finally:
                if replaced(failed):
                    rollout.retried()
                    stage = "retried"
            if given is not None:
                lt.reward(given)  # a value that is not a number is recorded as missing
                reward = number_of(given)
                if reward is None:
                    limits = f"a number between -{LARGEST_REWARD:g} and {LARGEST_REWARD:g}"
                    error = f"the reward is {repr(given)[:_SHOWN]}; it must be {limits}, or None"
    except Exception as raised:  # the attempt boundary: a failed attempt is data
        error = f"{type(raised).__name__}: {raised}"
    return AttemptEnded(stage, step, task.id, reward, time.monotonic() - began, error, name)


def _within(attempt: AttemptFunction[NamedT], task: NamedT, timeout_s: float) -> Reward:
    """Run the attempt and give up after the limit: a coroutine is then cancelled; a function runs in a thread of its
    own, which Python cannot stop, so it is left behind."""
    timeout_s = min(timeout_s, threading.TIMEOUT_MAX)  # the limit may be infinite
    give_up = time.monotonic() + timeout_s
    made = attempt(task) if is_async(attempt) else _in_a_thread(lambda: attempt(task), timeout_s)
    try:
        return result_of(made, max(0.0, give_up - time.monotonic()))
    except TimeoutError:
        if time.monotonic() < give_up:
            raise
        raise TimeoutError(_too_long(timeout_s)) from None


def _in_a_thread(function: Callable[[], ResultT], timeout_s: float) -> ResultT:
    outcome: list[ResultT] = []
    failure: list[BaseException] = []

    def call() -> None:
        try:
            outcome.append(function())
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(call,), daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        raise TimeoutError(_too_long(timeout_s))
    if failure and isinstance(failure[0], Exception):
        raise failure[0]
    if failure:  # sys.exit() in an agent ends its attempt, not the run
        raise RuntimeError(f"{type(failure[0]).__name__}: {failure[0]}") from failure[0]
    return outcome[0]


def _too_long(timeout_s: float) -> str:
    return f"the attempt did not end within {timeout_s:g} s"
