"""Work handed to another thread keeps the scope of the code that handed it over.

``threading.Thread``, ``ThreadPoolExecutor`` and multiprocessing's ``ThreadPool`` start with an empty context or, if
``sys.flags.thread_inherit_context`` is set (the default of free-threaded builds), with that of their starter. Only our
own scope is carried over, never the user's context variables: otherwise their program would behave differently with us
than without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import MethodType
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Scope, for_another_thread, use_scope

_POOLS = ("concurrent.futures.thread", "concurrent.futures.process", "multiprocessing.pool")
"""The modules of functions that a pool's threads and processes run."""
_PICKLES = "concurrent.futures.interpreter"
"""The module of the executor (from Python 3.14 on) whose threads are interpreters of their own: its work is pickled."""
METHODS_OF_POOLS = ("apply_async", "_map_async", "imap", "imap_unordered")
"""The methods of multiprocessing's pools that take work; all others call these."""


def wrap_executor(module: Any) -> None:
    """Hook of ``concurrent.futures.thread``."""
    submit = handing_over(_inside)

    def submit_inside(wrapped: Callable[..., Any], pool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(base.__module__ == _PICKLES for base in type(pool).__mro__):
            return wrapped(*args, **kwargs)
        return submit(wrapped, pool, args, kwargs)

    patching.wrap(module, "ThreadPoolExecutor.submit", submit_inside)


def wrap_pool(module: Any) -> None:
    """Hook of ``multiprocessing.pool``."""
    for name in METHODS_OF_POOLS:
        patching.wrap(module, f"ThreadPool.{name}", handing_over(_inside))


def wrap_thread(module: Any) -> None:
    """Hook of ``threading``."""
    patching.wrap(module, "Thread.start", _start)


def handing_over(
    inside: Callable[[Scope, Any], Callable[..., Any]], scope_there: Callable[[], Scope | None] = for_another_thread
) -> patching.Wrapper:
    """Return the wrapper of a method that takes work: the function in its first argument or ``func`` then runs in the
    scope of the caller.

    Args:
        inside: returns a function that runs in a scope.
        scope_there: returns the scope; None leaves the function as it is.
    """

    def hand_over(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scope = guarded("thread", scope_there)
        if scope is None:
            return wrapped(*args, **kwargs)
        if args:
            args = (inside(scope, args[0]), *args[1:])
        elif "func" in kwargs:
            kwargs = {**kwargs, "func": inside(scope, kwargs["func"])}
        return wrapped(*args, **kwargs)

    return hand_over


def _inside(scope: Scope, function: Any) -> Callable[..., Any]:
    def work(*arguments: Any, **named: Any) -> Any:
        with use_scope(scope):
            return function(*arguments, **named)

    return work


def _start(
    wrapped: Callable[..., Any], instance: threading.Thread, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if serves_everyone(instance):
        with use_scope(Scope()):  # or it would start with its starter's context if Python is set so, as in 3.14t
            return wrapped(*args, **kwargs)
    scope = guarded("thread", for_another_thread)
    if scope is not None:
        instance.run = _run_inside(instance, scope)  # type: ignore[method-assign]
    return wrapped(*args, **kwargs)


def serves_everyone(worker: Any) -> bool:
    """Whether a thread or process is a pool's worker or manager. These run work from any caller, so the scope in which
    they start is irrelevant."""
    target = getattr(worker, "_target", None)
    return getattr(target, "__module__", None) in _POOLS or type(worker).__module__ in _POOLS


def _run_inside(thread: threading.Thread, scope: Scope) -> Callable[[], None]:
    run, own = thread.run, vars(thread).get("run")

    def run_inside(self: threading.Thread) -> None:
        # Removed again so that thread and function do not keep each other alive.
        vars(self).pop("run", None)
        if own is not None:
            self.run = own  # type: ignore[method-assign]
        with use_scope(scope):
            run()

    # A bound method, like the original: other libraries that wrap ``run`` (Sentry) call its function with the thread.
    return MethodType(run_inside, thread)
