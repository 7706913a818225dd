"""``@lightning.agent("name")``: everything that happens below the function is said and done by that agent.

The function behaves as before: same kind (sync, coroutine, generator, async generator), same values, same exceptions.
The innermost agent wins. A generator is inside its agent only while its own body runs, never while it is suspended.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, overload

from lightning_instrumentation import semconv, spans
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.runtime import runtime
from lightning_instrumentation.scope import Agent, current, entered, speaking

if TYPE_CHECKING:
    from opentelemetry.trace import Span

F = TypeVar("F", bound=Callable[..., Any])

_USAGE = 'write @lightning.agent("name") above a function'


class _Invocation:
    """One call of an agent's function: an ``invoke_agent`` span and the scope in which the body runs."""

    __slots__ = ("_scope", "_span")

    def __init__(self, name: str) -> None:
        self._scope = current()
        self._span: Span | None = None
        guarded("agent", self._begin, name)

    def _begin(self, name: str) -> None:
        started = runtime()
        if started is None:
            return
        agent = Agent(name, "decorator")
        self._span = spans.begin(
            started,
            f"{semconv.INVOKE_AGENT} {name}",
            {
                semconv.OPERATION: semconv.INVOKE_AGENT,
                semconv.AGENT_NAME: name,
                semconv.AGENT_SOURCE: agent.source,
            },
        )
        self._scope = speaking(agent, self._span)

    def body(self) -> entered:
        return entered(self._scope)

    def end(self, error: BaseException | None = None) -> None:
        if isinstance(error, GeneratorExit):
            # A generator that was closed early, maybe because nobody holds it, has done what it was asked to do.
            spans.end_soon(self._span)
        else:
            spans.end(self._span, error)
        self._span = None


@overload
def agent(name: str | None = None) -> Callable[[F], F]: ...


@overload
def agent(name: F) -> F: ...


def agent(name: Any = None) -> Any:
    """Name the agent that a function is; without a name, the function's own.

    Raises:
        TypeError: the name is no text, or what is decorated is no function.
    """
    if name is None or isinstance(name, str):
        if name is not None and not name.strip():
            raise TypeError(f"an agent needs a name that is not empty, got {name!r}; {_USAGE}")
        return lambda function: _decorate(function, name)
    if callable(name) or isinstance(name, (staticmethod, classmethod)):
        return _decorate(name, None)
    raise TypeError(f"an agent's name is text, got {name!r} ({type(name).__name__}); {_USAGE}")


def _decorate(function: Any, name: str | None) -> Any:
    if isinstance(function, (staticmethod, classmethod)):
        return type(function)(_decorate(function.__func__, name))
    if not inspect.isroutine(function):
        what = f"the class {function.__name__}" if inspect.isclass(function) else repr(function)
        raise TypeError(f"@lightning.agent needs a function or method, got {what}; {_USAGE}")
    name = name or function.__name__
    if inspect.isasyncgenfunction(function):
        return _async_generator(function, name)
    if inspect.iscoroutinefunction(function):
        return _coroutine(function, name)
    if inspect.isgeneratorfunction(function):
        return _generator(function, name)
    return _sync(function, name)


def _sync(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        invocation = _Invocation(name)
        try:
            with invocation.body():
                result = function(*args, **kwargs)
        except BaseException as error:
            invocation.end(error)
            raise
        if inspect.iscoroutine(result):
            # A plain function that hands out a coroutine has not run yet.
            return _awaited(result, invocation)
        invocation.end()
        return result

    return invoke


def _coroutine(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    async def invoke(*args: Any, **kwargs: Any) -> Any:
        return await _awaited(function(*args, **kwargs), _Invocation(name))

    return invoke


async def _awaited(coroutine: Any, invocation: _Invocation) -> Any:
    try:
        with invocation.body():
            result = await coroutine
    except BaseException as error:
        invocation.end(error)
        raise
    invocation.end()
    return result


def _generator(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def invoke(*args: Any, **kwargs: Any) -> Any:
        invocation = _Invocation(name)
        try:
            with invocation.body():
                generator = function(*args, **kwargs)
            step, value = generator.send, None
            while True:
                try:
                    with invocation.body():
                        item = step(value)
                except StopIteration as stop:
                    invocation.end()
                    return stop.value
                try:
                    step, value = generator.send, (yield item)
                except GeneratorExit:
                    with invocation.body():
                        generator.close()
                    raise
                except BaseException as thrown:
                    step, value = generator.throw, thrown
        except BaseException as error:
            invocation.end(error)
            raise

    return invoke


def _async_generator(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    async def invoke(*args: Any, **kwargs: Any) -> Any:
        invocation = _Invocation(name)
        try:
            with invocation.body():
                generator = function(*args, **kwargs)
            step, value = generator.asend, None
            while True:
                try:
                    with invocation.body():
                        item = await step(value)
                except StopAsyncIteration:
                    invocation.end()
                    return
                try:
                    step, value = generator.asend, (yield item)
                except GeneratorExit:
                    with invocation.body():
                        await generator.aclose()
                    raise
                except BaseException as thrown:
                    step, value = generator.athrow, thrown
        except BaseException as error:
            invocation.end(error)
            raise

    return invoke
