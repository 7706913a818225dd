"""The common decorator of ``lt.agent`` and ``lt.tool``: a function with work around its body.

The function behaves as before: same kind (sync, coroutine, generator, async generator), same values, same exceptions. A
generator is inside only while its own body runs, never while it is suspended.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from lightning_instrumentation.scope import use_scope


class Work(Protocol):
    """The work around one call of a function. None of its methods raises."""

    def body(self) -> use_scope:
        """Return the context manager for the body, each time it resumes."""
        ...

    def yielded(self, value: Any) -> None:
        """Note an item that the body yields."""
        ...

    def returned(self, value: Any) -> None:
        """Note the body's result; ``end`` follows."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the work; ``error`` is what the body raised, None if it returned."""
        ...


Begin = Callable[[tuple[Any, ...], Mapping[str, Any]], Work]
"""Creates the work for a call with these arguments."""


def decorated(function: Any, begin: Callable[[Any], Begin], *, what: str, usage: str) -> Any:
    """Return ``function`` with the work from ``begin(function)`` around every call.

    Args:
        what: for error messages, such as ``@lt.agent``.
        usage: how to write it.

    Raises:
        TypeError: the decorated object is not a function or method.
    """
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(decorated(function.__func__, begin, what=what, usage=usage))
    if not inspect.isroutine(function):
        got = f"the class {function.__name__}" if inspect.isclass(function) else repr(function)
        raise TypeError(f"{what} needs a function or method, got {got}; {usage}")
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, begin(function))
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, begin(function))
    if inspect.isgeneratorfunction(function):
        return _generator(function, begin(function))
    return _sync(function, begin(function))


def _sync(function: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    @functools.wraps(function)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        work = begin(args, kwargs)
        try:
            with work.body():
                result = function(*args, **kwargs)
        except BaseException as error:
            work.end(error)
            raise
        if inspect.iscoroutine(result):
            # A plain function that returns a coroutine has not run yet.
            return _awaited(result, work)
        work.returned(result)
        work.end()
        return result

    return invoke


def _coroutine(function: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    @functools.wraps(function)
    async def invoke(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(function(*args, **kwargs), begin(args, kwargs))

    return invoke


async def _awaited(coroutine: Any, work: Work) -> Any:
    try:
        with work.body():
            result = await coroutine
    except BaseException as error:
        work.end(error)
        raise
    work.returned(result)
    work.end()
    return result


def _generator(function: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    @functools.wraps(function)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        work = begin(args, kwargs)
        try:
            with work.body():
                generator = function(*args, **kwargs)
            step, value = generator.send, None
            while True:
                try:
                    with work.body():
                        item = step(value)
                except StopIteration as stop:
                    work.returned(stop.value)
                    work.end()
                    return stop.value
                work.yielded(item)
                try:
                    step, value = generator.send, (yield item)
                except GeneratorExit:
                    with work.body():
                        generator.close()
                    raise
                except BaseException as thrown:
                    step, value = generator.throw, thrown
        except BaseException as error:
            work.end(error)
            raise

    return invoke


def _async_generator(function: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    @functools.wraps(function)
    async def invoke(*args: Any, **kwargs: Any) -> Any:
        work = begin(args, kwargs)
        try:
            with work.body():
                generator = function(*args, **kwargs)
            step, value = generator.asend, None
            while True:
                try:
                    with work.body():
                        item = await step(value)
                except StopAsyncIteration:
                    work.returned(None)
                    work.end()
                    return
                work.yielded(item)
                try:
                    step, value = generator.asend, (yield item)
                except GeneratorExit:
                    with work.body():
                        await generator.aclose()
                    raise
                except BaseException as thrown:
                    step, value = generator.athrow, thrown
        except BaseException as error:
            work.end(error)
            raise

    return invoke
