"""Work handed to another thread keeps the scope of the code that handed it over.

``threading.Thread`` and ``ThreadPoolExecutor`` start with an empty context. Only our own scope is carried over, never
the user's context variables: their program would otherwise behave differently with us than without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Scope, for_another_thread, use_scope


def wrap_executor(module: Any) -> None:
    """Hook of ``concurrent.futures.thread``."""
    patching.wrap(module, "ThreadPoolExecutor.submit", _submit)


def wrap_thread(module: Any) -> None:
    """Hook of ``threading``."""
    patching.wrap(module, "Thread.start", _start)


def _submit(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scope = guarded("thread", for_another_thread)
    if scope is None or not args:
        return wrapped(*args, **kwargs)
    function, *rest = args

    def work(*arguments: Any, **named: Any) -> Any:
        with use_scope(scope):
            return function(*arguments, **named)

    return wrapped(work, *rest, **kwargs)


def _start(
    wrapped: Callable[..., Any], instance: threading.Thread, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    scope = None if _serves_everyone(instance) else guarded("thread", for_another_thread)
    if scope is not None and "run" not in vars(instance):
        instance.run = _run_inside(instance, scope)  # type: ignore[method-assign]
    return wrapped(*args, **kwargs)


def _serves_everyone(thread: threading.Thread) -> bool:
    """Whether it is a pool's worker, which runs work from any caller: the scope of its start is irrelevant."""
    target = getattr(thread, "_target", None)
    return getattr(target, "__module__", None) == "concurrent.futures.thread"


def _run_inside(thread: threading.Thread, scope: Scope) -> Callable[[], None]:
    run = thread.run

    def run_inside() -> None:
        # Removed again so that thread and function do not keep each other alive.
        vars(thread).pop("run", None)
        with use_scope(scope):
            run()

    return run_inside
