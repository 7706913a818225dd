"""Work handed to a process or a process pool keeps the scope of its caller, and is recorded with the caller's settings.

A forked process starts with the context of its parent. That is right for a process of the user's own, and wrong for a
pool's worker, which runs work from any caller: the worker starts in no scope, and the work brings its own along. A
process that was not forked has no scope, and knows nothing of its parent's ``lt.init``, which stands behind
``if __name__ == "__main__"``: the work brings the settings along, too, and starts the client in that process.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.hooks.threads import METHODS_OF_POOLS, handing_over, serves_everyone
from lightning_instrumentation.runtime import running, runtime
from lightning_instrumentation.scope import Scope, capture_scope, for_another_thread, use_scope
from lightning_instrumentation.settings import Settings

_NOT_FORKED = ("spawn", "forkserver")


def wrap_executor(module: Any) -> None:
    """Hook of ``concurrent.futures.process``."""
    patching.wrap(module, "ProcessPoolExecutor.submit", handing_over(_Inside, _scope_there))


def wrap_pool(module: Any) -> None:
    """Hook of ``multiprocessing.pool``."""
    for name in METHODS_OF_POOLS:
        patching.wrap(module, f"Pool.{name}", handing_over(_Inside, _scope_there))


def watch_starts(module: Any) -> None:
    """Hook of ``multiprocessing.process``."""
    patching.wrap(module, "BaseProcess.start", _start)


def _start(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if serves_everyone(instance):
        with use_scope(Scope()):
            return wrapped(*args, **kwargs)
    inside = guarded("process", _run_inside, instance)
    if inside is None:
        return wrapped(*args, **kwargs)
    instance.run = inside  # pickled with the process; a process class of the user's may have no target
    try:
        return wrapped(*args, **kwargs)
    finally:
        vars(instance).pop("run", None)


def _run_inside(process: Any) -> _Inside | None:
    """Return what a process runs instead of its own ``run``; None if neither scope nor settings need to be passed."""
    if "run" in vars(process) or _start_method(process) not in _NOT_FORKED:
        return None
    target = getattr(process, "_target", None)
    if str(getattr(target, "__module__", "")).startswith("multiprocessing."):  # the server of a `Manager`
        return None
    scope = _scope_there()
    return None if scope is None else _Inside(scope, process.run)


def _start_method(process: Any) -> str | None:
    """Return how a process starts, by multiprocessing's names or those of another library, such as loky's."""
    from multiprocessing import get_start_method  # loaded by now

    return getattr(process, "_start_method", None) or get_start_method()


def _scope_there() -> Scope | None:
    """Return the scope to pass with the work; even an empty one if a client runs, because its settings go along."""
    return for_another_thread() if running() is None else capture_scope()


@dataclass(frozen=True, slots=True)
class _Told:
    """The settings of this process's client. They go to the workers through their pool's own pipe, with the token."""

    settings: Settings
    """The settings without the rules for redaction."""
    rules: bytes | None
    """The rules, pickled separately, so that a rule that cannot be pickled, or unpickled there, does not stop the work;
    None if one cannot be pickled."""

    @classmethod
    def by(cls, settings: Settings) -> _Told:
        try:
            rules = pickle.dumps(settings.redact)
        except Exception:
            rules = None
        return cls(replace(settings, redact=()), rules)

    def start(self) -> None:
        """Start the client of this process, if it has none."""
        if running() is not None:
            return
        try:
            settings = replace(self.settings, redact=pickle.loads(self.rules or b""))
        except Exception as error:
            failures.note(
                "redact-in-pool",
                "a rule of lt.init(redact=...) cannot be sent to a process that was not forked, so no texts are "
                "recorded in this one: make it a function at the top of a module, or call lt.init there, as in a "
                "pool's initializer",
                error=error,
                level=logging.WARNING,
            )
            settings = replace(self.settings, capture_content=False)
        runtime(settings)


class _Inside:
    """A function that runs in a scope, in a form that can be pickled wherever the function itself can."""

    def __init__(self, scope: Scope, function: Callable[..., Any]) -> None:
        from opentelemetry.trace import NonRecordingSpan

        # Another process needs only the ids of a span.
        span = None if scope.span is None else NonRecordingSpan(scope.span.get_span_context())
        self._scope = replace(scope, span=span)
        self._function = function
        started = running()
        self._told = None if started is None else _Told.by(started.settings)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._told is not None:
            self._told.start()
        with use_scope(self._scope):
            return self._function(*arguments, **named)
