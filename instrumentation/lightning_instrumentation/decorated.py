"""The common decorator of ``lt.agent``, ``lt.rollout``, and ``lt.tool``: it puts work around the body of a function.

The function behaves as before: same kind (sync, coroutine, generator, async generator), same values, same exceptions.
The work surrounds a generator only while its own body runs, never while it is suspended.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from lightning_instrumentation.delivery.deferred import at_exit, when_gone
from lightning_instrumentation.scope import use_scope


class Work(Protocol):
    """The work around one call of a function. None of its methods raises."""

    def body(self) -> use_scope:
        """Return the context manager for the body; called each time the body starts or resumes."""
        ...

    def yielded(self, value: Any) -> None:
        """Note an item that the body yields."""
        ...

    def returned(self, value: Any) -> None:
        """Note the body's result; ``end`` follows."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """End the work; ``error`` is what the body raised, None if it returned. Only the first end counts."""
        ...


Begin = Callable[[tuple[Any, ...], Mapping[str, Any]], Work]
"""Creates the work for a call with these arguments."""


def decorated(
    function: Any, begin: Callable[[Any], Begin], *, what: str, usage: str, into_generators: bool = False
) -> Any:
    """Return ``function`` with the work from ``begin(function)`` around every call.

    Args:
        what: the decorator's name in error messages, such as ``@lt.agent``.
        usage: how to write the decorator, for error messages.
        into_generators: whether a generator that a plain function returns, and keeps no reference to, is part of the
            call.

    Raises:
        TypeError: the decorated object is not a function or method.
    """
    if isinstance(function, (staticmethod, classmethod)):
        inner = decorated(function.__func__, begin, what=what, usage=usage, into_generators=into_generators)
        return type(function)(inner)
    if not inspect.isroutine(function):
        got = f"the class {function.__name__}" if inspect.isclass(function) else repr(function)
        raise TypeError(f"{what} needs a function or method, got {got}; {usage}")
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, begin(function))
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, begin(function))
    if inspect.isgeneratorfunction(function):
        return _generator(function, begin(function))
    return _sync(function, begin(function), into_generators=into_generators)


def _sync(function: Callable[..., Any], begin: Begin, *, into_generators: bool) -> Callable[..., Any]:
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
            # The plain function only created a coroutine; the code that matters has not run yet.
            return _ended_if_dropped(_awaited(result, work), work)
        if into_generators and sys.getrefcount(result) <= _OF_THE_CALLER_ALONE:
            # Only if the caller alone holds the result: a surrounded generator is closed when the caller drops it, and
            # another holder of the generator inside may want to continue reading.
            return _surrounded(result, work)
        work.returned(result)
        work.end()
        return result

    return invoke


def _references_of_the_caller_alone() -> int:
    """Return the ``getrefcount`` of a result that only its caller holds. It depends on Python's version: from 3.14 on,
    references from local variables are borrowed and not counted again."""
    result = (nothing for nothing in ())
    return sys.getrefcount(result)


_OF_THE_CALLER_ALONE = _references_of_the_caller_alone()


def _ended_if_dropped(running: Any, work: Work) -> Any:
    """Return the generator or coroutine; the work, which has begun, ends even if it is dropped before its body runs."""
    when_gone(running, partial(work.end, GeneratorExit()))
    return running


def _surrounded(result: Any, work: Work) -> Any:
    """Return a generator with the work around it; end the work of any other result."""
    runs = _generator if inspect.isgenerator(result) else _async_generator if inspect.isasyncgen(result) else None
    if runs is not None:
        return _ended_if_dropped(runs(lambda: result, lambda args, kwargs: work)(), work)
    work.returned(result)
    work.end()
    return result


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
        never_mind = at_exit(partial(work.end, GeneratorExit()))
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
        finally:
            never_mind()

    return invoke


def _async_generator(function: Callable[..., Any], begin: Begin) -> Callable[..., Any]:
    @functools.wraps(function)
    async def invoke(*args: Any, **kwargs: Any) -> Any:
        work = begin(args, kwargs)
        never_mind = at_exit(partial(work.end, GeneratorExit()))
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
        finally:
            never_mind()

    return invoke
