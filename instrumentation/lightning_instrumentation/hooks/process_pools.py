"""Work handed to a pool of processes keeps the scope of the code that handed it over.

A forked process starts with the context of its parent. That is right for a process of the user's own, and wrong for a
pool's worker, which runs work from any caller: it starts in no scope, and the work brings its own along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lightning_instrumentation.hooks import patching
from lightning_instrumentation.hooks.threads import METHODS_OF_POOLS, handing_over, serves_everyone
from lightning_instrumentation.scope import Scope, use_scope


def wrap_executor(module: Any) -> None:
    """Hook of ``concurrent.futures.process``."""
    patching.wrap(module, "ProcessPoolExecutor.submit", handing_over(_Inside))


def wrap_pool(module: Any) -> None:
    """Hook of ``multiprocessing.pool``."""
    for name in METHODS_OF_POOLS:
        patching.wrap(module, f"Pool.{name}", handing_over(_Inside))


def watch_starts(module: Any) -> None:
    """Hook of ``multiprocessing.process``."""
    patching.wrap(module, "BaseProcess.start", _start)


def _start(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if not serves_everyone(instance):
        return wrapped(*args, **kwargs)
    with use_scope(Scope()):
        return wrapped(*args, **kwargs)


class _Inside:
    """A function that runs in a scope, in a form that can be pickled wherever the function itself can."""

    def __init__(self, scope: Scope, function: Callable[..., Any]) -> None:
        from opentelemetry.trace import NonRecordingSpan

        # Of a span, another process needs the ids alone.
        span = None if scope.span is None else NonRecordingSpan(scope.span.get_span_context())
        self._scope = replace(scope, span=span)
        self._function = function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with use_scope(self._scope):
            return self._function(*arguments, **named)
