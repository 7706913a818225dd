"""AutoGen: which agent speaks, in which rollout, and a span for every tool call.

An agent runs either by itself (``run``, ``run_stream``, ``on_messages``) or in a runtime, where every message waits in
a queue and is handled in a task of the runtime's. A runtime that was started before the rollouts does not know of them,
so a message carries the scope in which it was sent, and its handler runs in that scope.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Agent, Scope, await_inside, capture_scope, each_inside, with_agent
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
    # Even if nothing was carried: the task has the scope in which the runtime was started, which may be a rollout's.
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
    scope = guarded("autogen-agent", lambda: with_agent(_named(agent.name)))
    work = wrapped(*args, **kwargs)
    return work if scope is None else await_inside(scope, work)


def _streaming(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    stream = wrapped(*args, **kwargs)
    scope = guarded("autogen-agent", lambda: with_agent(_named(agent.name)))
    return stream if scope is None else each_inside(scope, stream)


# -- tools -----------------------------------------------------------------------------------------------------------


def wrap_tools(module: Any) -> None:
    """Hook of ``autogen_core.tools._base``: functions, handoffs, and agents and teams used as tools."""
    patching.wrap(module, "BaseTool.run_json", _run_tool)
    patching.wrap(module, "BaseStreamTool.run_json_stream", _stream_tool)


def _begin(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
    arguments = args[0] if args else kwargs.get("args")
    call_id = args[2] if len(args) > 2 else kwargs.get("call_id")
    return ToolCall(tool.name, call_id, lambda: arguments)


async def _run_tool(wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _begin(tool, args, kwargs) as call:
        value = await wrapped(*args, **kwargs)
        call.returned(lambda: tool.return_value_as_string(value))
    return value


async def _stream_tool(
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
