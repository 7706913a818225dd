"""``with lt.rollout(task_id):`` one attempt at a task; every call below belongs to it and to no other.

A rollout is a trace of its own. Identity follows the code, not the process: rollouts in threads and tasks of one
process stay separate, and code before or after the block is not part of it. Inside an attempt that a runner or the
launcher began, ``lt.rollout`` joins that attempt: the runner or launcher decides which attempts are compared, and which
are never trained.
"""

from __future__ import annotations

import json
import signal
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import partial
from inspect import getclosurevars
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lightning_instrumentation import semconv
from lightning_instrumentation.block import Block
from lightning_instrumentation.decorated import decorated
from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.reward import reward
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import Identity, Scope, block_scope, current, use_scope
from lightning_instrumentation.spans import lifecycle
from lightning_instrumentation.spans.messages import as_json, own_method, plain_copy

if TYPE_CHECKING:
    from opentelemetry.trace import Span

F = TypeVar("F", bound=Callable[..., Any])

_MODES = ("train", "evaluate", "baseline", "record")
_RETRIED = "retried"
_MOST_ENDED = 10_000
_ended: OrderedDict[str, None] = OrderedDict()
"""Those of the ids given by the user whose attempts have ended in this process."""
_USAGE = 'write @lt.rollout("task") above a function, or `with lt.rollout("task"):` around code'


class Rollout(Block):
    """An attempt as a context manager, sync and async, that can be entered once; or a decorator for functions.

    If it is entered inside a runner's attempt, it takes that attempt's ids, task, group, and mode.

    Raises:
        TypeError: ``task_id`` is None.
        ValueError: the mode is none of ``train``, ``evaluate``, ``baseline``, and ``record``.
    """

    _of_run = False

    def __init__(
        self,
        task_id: object,
        *,
        group_id: object | None = None,
        rollout_id: str | None = None,
        attempt_id: str | None = None,
        mode: str | None = None,
        input: Any = None,
        policies: str | Sequence[str] = (),
    ) -> None:
        if task_id is None:
            raise TypeError("a rollout needs a task id, got None; pass any text or number that names the task")
        if mode is not None and str(mode) not in _MODES:
            raise ValueError(f'the mode of a rollout is "train", "evaluate", "baseline" or "record", got {mode!r}')
        self.task_id = str(task_id)
        self.group_id = self.task_id if group_id is None else str(group_id)
        """Attempts with the same group id are compared with each other."""
        self.rollout_id = str(rollout_id or uuid.uuid4().hex)
        self.attempt_id = str(attempt_id or uuid.uuid4().hex)
        self.mode = "train" if mode is None else str(mode)
        self.trace_id: str | None = None
        """The attempt's trace id, 32 hex digits; None before the attempt begins, or if nothing is recorded."""
        self._mode_given = mode is not None
        self._attempt_given = attempt_id is not None and not self._of_run
        self._input = input
        self._policies = [policies] if isinstance(policies, str) else [str(policy) for policy in policies]
        self._span: Span | None = None
        self._joined = False
        self._inside: Scope | None = None
        self._body: use_scope | None = None
        self._another = partial(
            Rollout,
            task_id,
            group_id=group_id,
            rollout_id=rollout_id,
            attempt_id=attempt_id,
            mode=mode,
            input=input,
            policies=policies,
        )

    def __call__(self, function: F) -> F:
        """Make every call of a function, coroutine or generator an attempt of its own, while its own body runs."""

        def begin(body: Any) -> Any:
            return lambda args, kwargs: _Call(self._another())

        return decorated(function, begin, what="@lt.rollout", usage=_USAGE, into_generators=True)

    def reward(self, value: Any, name: str = "reward", *, explanation: str | None = None) -> None:
        """Record a reward for this attempt from anywhere, also after its end."""
        reward(value, name, rollout_id=self.rollout_id, attempt_id=self.attempt_id, explanation=explanation)

    def retried(self) -> None:
        """Declare, before the block ends, that another attempt replaces this one, which is then never trained.

        Inside a runner's attempt this changes nothing, because the runner itself declares which attempts it replaces.
        """
        if self._span is not None and not self._joined:
            self._span.set_attribute(semconv.ROLLOUT_MODE, _RETRIED)

    def __enter__(self) -> Self:
        if self._inside is not None:
            raise RuntimeError(f"rollout {self.rollout_id} was entered before; make a new one for every attempt")
        self._body = block_scope(self._start())
        self._body.__enter__()
        return self

    def _start(self) -> Scope:
        """Begin the attempt; return the scope for the code that belongs to it."""
        name = f"rollout {self.task_id}"
        scope = self._scope()
        # Identity first: the root span takes it from the scope, like every other span.
        with use_scope(scope):
            guarded("rollout", self._begin, name)
        self._inside = replace(scope, span=self._span or scope.span)
        return self._inside

    def _scope(self) -> Scope:
        before = current()
        around = before.identity
        if around is not None and around.of_run and not self._of_run:
            self._join(around)
            return before
        mode = _incoming_mode() if around is None else around.mode
        if mode is not None and not self._mode_given:
            self.mode = mode
        if self._attempt_given and self.attempt_id in _ended:
            failures.say(
                "rollout-ended",
                f"attempt {self.attempt_id!r} has ended, and its first end counts: what a second lt.rollout records "
                "may come too late; give each attempt an id of its own, or leave out lt.rollout for one that pauses "
                'and goes on later (docs/rollouts.md, "An attempt that pauses")',
            )
        identity = Identity(self.rollout_id, self.attempt_id, self.task_id, self.group_id, self.mode, self._of_run)
        return Scope(identity, before.agent, before.around, uncaptured=before.uncaptured, prompts=before.prompts)

    def _join(self, attempt: Identity) -> None:
        failures.say(
            "rollout-joined",
            f"lt.rollout({self.task_id!r}) is inside attempt {attempt.attempt_id} of a runner or of `lightning-trainer "
            "run --task`, and belongs to it: ids, group and mode are that attempt's, whatever lt.rollout is given",
        )
        self._joined = True
        self.rollout_id = attempt.rollout_id
        self.attempt_id = attempt.attempt_id or attempt.rollout_id
        self.task_id = attempt.task_id or attempt.rollout_id
        self.group_id = attempt.group_id or self.task_id
        self.mode = attempt.mode or "train"

    def _begin(self, name: str) -> None:
        started = runtime(again=True)
        if started is None:
            return
        attributes: dict[str, Any] = {semconv.OPERATION: semconv.INVOKE_WORKFLOW}
        if self._input is not None and started.settings.capture_content:
            attributes[semconv.ROLLOUT_INPUT] = _text(self._input)
        if not self._joined:
            attributes[semconv.ROLLOUT_ROOT] = True
            if self._policies:
                attributes[semconv.ROLLOUT_POLICIES] = self._policies
        self._span = lifecycle.begin(started.tracer, name, attributes, new_trace=not self._joined)
        if self._span is not None:
            self.trace_id = f"{self._span.get_span_context().trace_id:032x}"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._body is not None
        assert self._inside is not None
        if current().identity is not self._inside.identity and kind is not GeneratorExit:
            failures.note(
                "rollout-in-another-context",
                f"`with lt.rollout({self.task_id!r})` ended in another context than it began in, as in a generator "
                "that a web framework reads: what came after the first `yield` does not belong to it; decorate the "
                "generator with @lt.rollout(...) instead",
            )
        self._body.__exit__(kind, error, traceback)
        self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if guarded("rollout", _is_of_a_person, error):
            guarded("rollout", self.retried)  # an attempt that a person interrupted says nothing about the agent
        if self._attempt_given and not self._joined:
            guarded("rollout", _has_ended, self.attempt_id)
        span, self._span = self._span, None
        if isinstance(error, GeneratorExit):
            # A generator that was closed early, perhaps by garbage collection, has not failed.
            lifecycle.end_soon(span)
        else:
            lifecycle.end(span, error)


def _has_ended(attempt_id: str) -> None:
    _ended[attempt_id] = None
    if len(_ended) > _MOST_ENDED:
        _ended.popitem(last=False)


def _is_of_a_person(error: BaseException | None) -> bool:
    """Whether the error is a Ctrl-C, or the cancellation that asyncio turns one into.

    On Ctrl-C, asyncio cancels the main task and whatever that task awaits. It cancels all other tasks once the main
    task has ended, while it raises the ``KeyboardInterrupt``.
    """
    if error is None or isinstance(error, (Exception, GeneratorExit)):
        return False
    if isinstance(error, KeyboardInterrupt):
        return True
    import asyncio  # already imported if a task was cancelled

    if not isinstance(error, asyncio.CancelledError):
        return False
    handler = signal.getsignal(signal.SIGINT)
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    if isinstance(runner, asyncio.Runner) and getattr(runner, "_interrupt_count", 0) > 0:
        return True
    if _kernel_was_interrupted(handler):
        return True
    return isinstance(error.__context__, KeyboardInterrupt)


def _kernel_was_interrupted(handler: Any) -> bool:
    """Whether a person has interrupted an async cell of a notebook. ipykernel's handler then gives its future
    ``sigint_future`` a result, and the cell's task is cancelled; if the cell ends first, the future is cancelled."""
    if getattr(handler, "__module__", None) != "ipykernel.ipkernel":
        return False
    told = getclosurevars(handler).nonlocals.get("sigint_future")
    return told is not None and told.done() and not told.cancelled()


class _Call:
    """One call of a decorated function."""

    __slots__ = ("_rollout", "_scope")

    def __init__(self, rollout: Rollout) -> None:
        self._rollout = rollout
        self._scope = rollout._start()

    def body(self) -> use_scope:
        return use_scope(self._scope)

    def yielded(self, value: Any) -> None:
        """Ignore the value: what a rollout yields or returns is not recorded."""

    returned = yielded

    def end(self, error: BaseException | None = None) -> None:
        self._rollout._end(error)


class RunRollout(Rollout):
    """The attempt of a runner or of a whole program; an ``lt.rollout`` inside belongs to it."""

    _of_run = True


def _incoming_mode() -> str | None:
    """Return the mode of the attempt that a request came from (in OpenTelemetry baggage), if that is never trained.

    Nothing else in the baggage counts here: a server's clients must not choose what its attempts are compared with.
    """
    if runtime(again=True) is None:
        return None
    from lightning_instrumentation.spans.tracing import identity_attributes  # imports OpenTelemetry, loaded by now

    incoming = guarded("identity", identity_attributes) or {}
    return {"evaluate": "evaluate", "baseline": "evaluate", "record": "record"}.get(
        incoming.get(semconv.ROLLOUT_MODE, "")
    )


def _text(input: Any) -> str:
    try:
        return json.dumps(input, default=_with_fields, ensure_ascii=False)
    except Exception:  # a key that JSON cannot express, an object that contains itself, or one that raises
        return as_json(plain_copy(input))


_LARGEST_ARRAY = 1 << 16
"""In bytes. A larger array is recorded as its text, which leaves numbers out."""


def _with_fields(value: Any) -> Any:
    """Return a model's or a dataclass's fields, or an array's numbers, for judges to look at; else the value's text."""
    try:
        if (dump := own_method(value, "model_dump")) is not None:
            return dump(value, mode="json")
        if is_dataclass(type(value)):
            return {one.name: getattr(value, one.name) for one in fields(value)}
        if (numbers := own_method(value, "tolist")) is not None and getattr(value, "nbytes", 0) <= _LARGEST_ARRAY:
            return numbers(value)
    except Exception:  # raised by the value's own methods
        return str(value)
    return str(value)


def rollout(
    task_id: object,
    *,
    group_id: object | None = None,
    rollout_id: str | None = None,
    attempt_id: str | None = None,
    mode: str | None = None,
    input: Any = None,
    policies: str | Sequence[str] = (),
) -> Rollout:
    """Make a block (``with`` or ``async with``), or each call of a decorated function, one attempt at a task.

    Decorate a generator rather than write ``with`` in it: it then belongs to the attempt wherever it is resumed.

    Inside an attempt that a runner, ``lightning-trainer rollouts`` or ``run --task`` began, the block or call belongs
    to that attempt, and the arguments given here do not change its ids, group, or mode.

    Args:
        task_id: names the task; text or a number.
        group_id: attempts with the same group id are compared with each other; the task's id by default.
        rollout_id: names the requested execution; a new id by default.
        attempt_id: names this try at it; a new id by default.
        mode: ``train``; ``evaluate`` for an attempt that is recorded and never trained; ``baseline`` for one of these
            whose reward is the baseline of its group (ReMax); ``record`` for one that only datasets are made from. By
            default, the mode of the rollout around this one; for a request from an attempt that is never trained
            (according to its OpenTelemetry baggage), ``record`` if that is its mode, else ``evaluate``; else ``train``.
        input: the task itself, recorded as JSON on the root span.
        policies: the policies whose steps count the attempt's group even if they answer no call in it, like the
            ``policies`` of a ``Runner``.
    """
    return Rollout(
        task_id,
        group_id=group_id,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        mode=mode,
        input=input,
        policies=policies,
    )
