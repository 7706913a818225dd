"""CrewAI: which agent speaks, by its role, and a span for every tool call.

An agent speaks from when it gets a task until the task is done (also while the task's output is checked and converted),
and during a kickoff without a crew. Work that CrewAI hands to threads keeps its agent.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Agent, Scope, await_inside, use_scope, with_agent
from lightning_instrumentation.tool import ToolCall


def _scope_of(agent: Any) -> Scope | None:
    role = str(getattr(agent, "role", None) or "").strip()
    return with_agent(Agent(role, "crewai")) if role else None


def _inside(scope: Scope | None, wrapped: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if scope is None:
        return wrapped(*args, **kwargs)
    with use_scope(scope):
        result = wrapped(*args, **kwargs)
    # A coroutine has not run yet, whether the method is async or only returns one.
    return await_inside(scope, result) if inspect.iscoroutine(result) else result


# -- agents and their tasks ------------------------------------------------------------------------------------------


def watch_agents(module: Any) -> None:
    """Hook of ``crewai.agent.core``."""
    for entrance in ("execute_task", "aexecute_task", "kickoff", "kickoff_async", "akickoff"):
        patching.wrap(module, f"Agent.{entrance}", _working)


def watch_lite_agents(module: Any) -> None:
    """Hook of ``crewai.lite_agent``, whose other entrances call this one."""
    patching.wrap(module, "LiteAgent.kickoff", _working)


def _working(wrapped: Callable[..., Any], agent: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _inside(guarded("crewai-agent", _scope_of, agent), wrapped, args, kwargs)


def watch_tasks(module: Any) -> None:
    """Hook of ``crewai.task``: covers agents of other frameworks too, and what happens around an agent's work."""
    for entrance in ("_execute_core", "_aexecute_core"):
        patching.wrap(module, f"Task.{entrance}", _executing)


def _executing(wrapped: Callable[..., Any], task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    agent = (args[0] if args else kwargs.get("agent")) or getattr(task, "agent", None)
    return _inside(guarded("crewai-task", _scope_of, agent), wrapped, args, kwargs)


# -- tools: as native function calls, and as the text protocol calls them ----------------------------------------------


def wrap_tools(module: Any) -> None:
    """Hook of ``crewai.tools.base_tool``."""
    for kind in ("BaseTool", "Tool"):
        patching.wrap(module, f"{kind}.run", _run)
        patching.wrap(module, f"{kind}.arun", _arun)


def wrap_structured_tools(module: Any) -> None:
    """Hook of ``crewai.tools.structured_tool``."""
    patching.wrap(module, "CrewStructuredTool.invoke", _run)
    patching.wrap(module, "CrewStructuredTool.ainvoke", _arun)


def _begin(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
    return ToolCall(tool.name, None, lambda: _arguments(args, kwargs))


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a tool's arguments: a structured tool gets them as ``input``, a plain one is called with them."""
    if args:
        return args[0] if len(args) == 1 else list(args)
    return kwargs["input"] if set(kwargs) == {"input", "config"} else kwargs


def _returned(call: ToolCall, result: Any) -> None:
    failed = type(result).__name__ == "ToolFailure"
    call.returned(lambda: getattr(result, "message", str(result)) if failed else result, failed=failed)


def _run(wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _begin(tool, args, kwargs) as call:
        result = wrapped(*args, **kwargs)
        _returned(call, result)
    return result


async def _arun(wrapped: Callable[..., Any], tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _begin(tool, args, kwargs) as call:
        result = await wrapped(*args, **kwargs)
        _returned(call, result)
    return result
