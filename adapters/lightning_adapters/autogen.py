"""AutoGen: which agent speaks, in which rollout, and a span for every tool call.

An agent runs either by itself (``run``, ``run_stream``, ``on_messages``) or in a runtime, where every message waits in
a queue and is handled in a task of the runtime's. A runtime that was started before the rollouts does not know of them,
so a message carries the scope in which it was sent, and its handler runs in that scope.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import (
    Agent,
    Scope,
    await_inside,
    capture_scope,
    current,
    each_inside,
    use_scope,
    with_agent,
)
from lightning_instrumentation.tool import ToolCall

_TEAM_ID = re.compile(r"_[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
"""Suffix of the names under which a runtime knows a team's members and its manager."""
_ENTRANCES = ("run", "run_stream", "on_messages", "on_messages_stream")
_CARRIED = "_lightning_scope"


def _named(name: object) -> Agent:
    return Agent(str(name), "autogen")


# -- a runtime's messages --------------------------------------------------------------------------------------------


def carry_scope(module: Any) -> None:
    """Hook of ``autogen_core._single_threaded_agent_runtime``."""
    for kind in ("Send", "Publish", "Response"):
        patching.wrap(module, f"{kind}MessageEnvelope.__init__", _sealed)
        patching.wrap(module, f"SingleThreadedAgentRuntime._process_{kind.lower()}", _processed)


def _sealed(wrapped: Callable[..., Any], envelope: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    wrapped(*args, **kwargs)
    guarded("autogen-message", lambda: setattr(envelope, _CARRIED, capture_scope()))


def _processed(wrapped: Callable[..., Any], runtime: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    envelope = args[0] if args else kwargs.get("message_envelope")
    # Set a scope even if the message carries none: otherwise the task would keep the one in which the runtime was
    # started, which may be a rollout's.
    return await_inside(getattr(envelope, _CARRIED, Scope()), wrapped(*args, **kwargs))


def watch_handlers(module: Any) -> None:
    """Hook of ``autogen_core._base_agent``: team members, managers that choose a speaker, core agents."""
    patching.wrap(module, "BaseAgent.on_message", _handled)


def _handled(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scope = guarded("autogen-agent", lambda: with_agent(_named(_TEAM_ID.sub("", agent.id.type))))
    work = wrapped(*args, **kwargs)
    return work if scope is None else await_inside(scope, work)


# -- agents of AgentChat ---------------------------------------------------------------------------------------------


def watch_agents(module: Any) -> None:
    """Hook of ``autogen_agentchat.agents``: every method by which one of its agents is entered."""
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and issubclass(kind, module.BaseChatAgent):
            for entrance in _ENTRANCES:
                method = vars(kind).get(entrance)
                if method is not None and not getattr(method, "__isabstractmethod__", False):
                    wrapper = _streaming if entrance.endswith("_stream") else _answering
                    patching.wrap(kind, entrance, wrapper)


def _answering(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    guarded("autogen-workbench", _watch_workbenches_of, agent)
    scope = guarded("autogen-agent", lambda: with_agent(_named(agent.name)))
    work = wrapped(*args, **kwargs)
    return work if scope is None else await_inside(scope, work)


def _streaming(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    guarded("autogen-workbench", _watch_workbenches_of, agent)
    stream = wrapped(*args, **kwargs)
    scope = guarded("autogen-agent", lambda: with_agent(_named(agent.name)))
    return stream if scope is None else each_inside(scope, stream)


# -- tools -----------------------------------------------------------------------------------------------------------


def wrap_tools(module: Any) -> None:
    """Hook of ``autogen_core.tools._base``: functions, handoffs, and agents and teams used as tools."""
    patching.wrap(module, "BaseTool.run_json", _run_tool)
    patching.wrap(module, "BaseStreamTool.run_json_stream", _stream_tool)


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
    arguments = args[0] if args else kwargs.get("args")
    return arguments, args[2] if len(args) > 2 else kwargs.get("call_id")


def _begin(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
    arguments, call_id = _asked(args, kwargs)
    return ToolCall(tool.name, call_id, lambda: arguments)


def _run_tool(wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Awaitable[Any]:
    if guarded("tool", _is_running, tool.name, *_asked(args, kwargs)):
        return wrapped(*args, **kwargs)
    return _run_recorded(wrapped, tool, args, kwargs)


async def _run_recorded(wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _begin(tool, args, kwargs) as call:
        value = await wrapped(*args, **kwargs)
        call.returned(lambda: tool.return_value_as_string(value))
    return value


def _stream_tool(
    wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncIterator[Any]:
    if guarded("tool", _is_running, tool.name, *_asked(args, kwargs)):
        return wrapped(*args, **kwargs)
    return _stream_recorded(wrapped, tool, args, kwargs)


async def _stream_recorded(
    wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncGenerator[Any]:
    call = _begin(tool, args, kwargs)
    last: Any = None
    try:
        async with aclosing(each_inside(call.scope, wrapped(*args, **kwargs))) as items:
            async for last in items:
                yield last
    except BaseException as error:
        call.end(error)
        raise
    call.returned(lambda: tool.return_value_as_string(last))
    call.end()


# -- workbenches that run a tool themselves, such as those of an MCP server ------------------------------------------

_WORKBENCHES = "autogen_core.tools._workbench"
_watched: set[tuple[type, str]] = set()
_running: dict[Any, tuple[str, Any, Any]] = {}
"""Name, arguments, and id of each tool call that a workbench is running, by the call's span."""


def watch_workbenches(module: Any) -> None:
    """Hook of ``autogen_ext.tools.mcp._workbench``."""
    _watch_workbench(module.McpWorkbench)


def watch_entered_workbenches(module: Any) -> None:
    """Hook of ``autogen_core.tools._workbench``: users' own workbenches, whose classes are unknown before."""
    patching.wrap(module, "Workbench.__aenter__", _entered)


def _entered(wrapped: Callable[..., Any], workbench: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    guarded("autogen-workbench", _watch_workbench, type(workbench))
    return wrapped(*args, **kwargs)


def _watch_workbenches_of(agent: Any) -> None:
    given = getattr(agent, "_workbench", None)  # AssistantAgent's attribute; in a user's own agent, anything
    for workbench in given if isinstance(given, list | tuple) else (given,):
        if _is_workbench(type(workbench)):
            _watch_workbench(type(workbench))


def _is_workbench(kind: type, name: str | None = None) -> bool:
    return any(base.__module__ == _WORKBENCHES and name in (None, base.__name__) for base in kind.__mro__)


def _watch_workbench(kind: type) -> None:
    """Wrap the methods that call a tool: in the class, in its bases that are workbenches, and in whatever base it
    inherits them from. AutoGen's own, for ``BaseTool``s, are left alone, because those tools record their own calls."""
    for method, is_one, wrapper in (
        ("call_tool", inspect.iscoroutinefunction, _call_workbench),
        ("call_tool_stream", _streams_in(kind), _stream_workbench),
    ):
        owners = [owner for owner in kind.__mro__ if method in vars(owner)]
        for owner in owners:
            if owner.__module__.startswith("autogen_core.") or (owner, method) in _watched:
                continue
            # A method that only has the same name, in a base of another kind or with another contract, is left alone.
            if (owner is owners[0] or _is_workbench(owner)) and is_one(vars(owner)[method]):
                _watched.add((owner, method))
                patching.wrap(owner, method, wrapper)


def _streams_in(kind: type) -> Callable[[Any], bool]:
    # Only in a StreamWorkbench is a plain function known to return an asynchronous iterator.
    plain = _is_workbench(kind, "StreamWorkbench")

    def streams(method: Any) -> bool:
        if plain and inspect.isfunction(method):
            return not inspect.iscoroutinefunction(method)
        return inspect.isasyncgenfunction(method)

    return streams


def _is_running(name: str, arguments: Any, call_id: Any) -> bool:
    """Whether the innermost span is this call's already: a workbench may pass the call to a tool or its base class."""
    outer = _running.get(current().span)
    if outer is None or (outer[1] or {}) != (arguments or {}):
        return False
    return outer[0] == name if call_id is None else outer[2] == call_id


def _called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, Any, Any]:
    name = args[0] if args else kwargs.get("name")
    arguments = args[1] if len(args) > 1 else kwargs.get("arguments")
    return str(name), arguments, args[3] if len(args) > 3 else kwargs.get("call_id")


def _call_workbench(
    wrapped: Callable[..., Any], workbench: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Awaitable[Any]:
    asked = _called(args, kwargs)
    if not _is_workbench(type(workbench)) or guarded("tool", _is_running, *asked):
        return wrapped(*args, **kwargs)
    return _call_recorded(wrapped, asked, args, kwargs)


async def _call_recorded(
    wrapped: Callable[..., Any], asked: tuple[str, Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    with ToolCall(asked[0], asked[2], lambda: asked[1] or {}) as call, _known_as_running(call, asked):
        result = await wrapped(*args, **kwargs)
        _say_result(call, result)
    return result


def _stream_workbench(
    wrapped: Callable[..., Any], workbench: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncIterator[Any]:
    asked = _called(args, kwargs)
    if not _is_workbench(type(workbench)) or guarded("tool", _is_running, *asked):
        return wrapped(*args, **kwargs)
    return _each_recorded(wrapped, asked, args, kwargs)


async def _each_recorded(
    wrapped: Callable[..., Any], asked: tuple[str, Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncGenerator[Any]:
    call = ToolCall(asked[0], asked[2], lambda: asked[1] or {})
    last: Any = None
    try:
        with _known_as_running(call, asked):
            with use_scope(call.scope):  # a plain function may call its base class's method at once
                stream = aiter(wrapped(*args, **kwargs))
            async with aclosing(each_inside(call.scope, stream)) as items:
                async for last in items:
                    yield last
    except BaseException as error:
        call.end(error)
        raise
    _say_result(call, last)
    call.end()


@contextmanager
def _known_as_running(call: ToolCall, asked: tuple[str, Any, Any]) -> Iterator[None]:
    span = call.scope.span if call.recorded else None
    if span is not None:
        _running[span] = asked
    try:
        yield
    finally:
        _running.pop(span, None)


def _say_result(call: ToolCall, result: Any) -> None:
    failed = getattr(result, "is_error", False) is True
    call.returned(lambda: result.to_text() if hasattr(result, "to_text") else result, failed=failed)
