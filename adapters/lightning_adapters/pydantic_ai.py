"""Pydantic AI: which agent speaks, and a span for every tool call; its own instrumentation is not needed.

A context variable holds the current run, with its agent. An agent in a node of LangGraph speaks for itself, and so does
a graph that one of the agent's tools calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import (
    Agent,
    Scope,
    add_framework_of_runs,
    agent_around_run,
    current,
    current_agent,
    use_scope,
    with_agent,
)
from lightning_instrumentation.tool import ToolCall

_AROUND = "_lightning_around"
"""Attribute of a run's context that holds the agent around the run. The ``run_id`` does not identify a run: a caller
may choose it, and use it for many runs at once."""
_NOBODY_CHOSE = "agent"
"""Pydantic AI names an unnamed agent after the variable that holds it, often ``agent``."""


def watch_runs(module: Any) -> None:
    """Hook of ``pydantic_ai._run_context``."""
    run_here = getattr(module, "get_current_run_context", None)
    if run_here is None:  # an older version, without that context variable
        return
    add_framework_of_runs(lambda: _active(run_here()))
    patching.wrap(module, "set_current_run_context", _begins)


def _active(run: Any) -> tuple[Agent, Agent | None] | None:
    agent = _agent_of(run)
    if agent is None:
        return None
    return agent, guarded("pydantic-ai-run", _around, run)


def _around(run: Any) -> Agent | None:
    if _AROUND not in vars(run):  # begun before this was watched
        _remember(run)
    return vars(run)[_AROUND]


def _agent_of(run: Any) -> Agent | None:
    name = getattr(getattr(run, "agent", None), "name", None)
    if not isinstance(name, str) or not name:
        return None
    return Agent(name, "pydantic-ai", str(getattr(run, "run_id", "")), explicit=name != _NOBODY_CHOSE)


def _begins(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    guarded("pydantic-ai-run", _remember, args[0] if args else kwargs.get("run_context"))
    return wrapped(*args, **kwargs)


def _remember(run: Any) -> None:
    vars(run)[_AROUND] = agent_around_run()


# -- tools: functions, and those of toolsets and MCP servers -----------------------------------------------------------


def wrap_tools(module: Any) -> None:
    """Hook of ``pydantic_ai.tool_manager``."""
    patching.wrap(module, "ToolManager.execute_tool_call", _run_tool)


async def _run_tool(wrapped: Callable[..., Any], manager: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    asked: Any = args[0] if args else kwargs.get("validated")
    call = guarded("tool", _begin, asked)
    if call is None:
        return await wrapped(*args, **kwargs)
    with call:
        try:
            result = await wrapped(*args, **kwargs)
        except Exception as error:
            guarded("tool", _failed, call, error)
            raise
        call.returned(lambda: _told(asked.call, result))
    return result


def _begin(asked: Any) -> ToolCall | None:
    """Begin the span of a call; None if no tool will run: the model made up its name, or a person must approve it."""
    if asked.tool is None or getattr(asked, "deferral", None) is not None:
        return None
    part = asked.call
    with use_scope(_scope_of(asked.ctx)):
        return ToolCall(part.tool_name, part.tool_call_id, lambda: {} if part.args is None else part.args)


def _scope_of(run: Any) -> Scope:
    """Return a tool's scope. In older versions (2.31), the context variable holds a run only during its model calls."""
    from pydantic_ai import _run_context

    run_here = getattr(_run_context, "get_current_run_context", None)
    agent = _agent_of(run)
    if agent is None or (run_here is not None and run_here() is not None):
        return current()
    return with_agent(agent) if agent.explicit or current_agent() is None else current()


def _failed(call: ToolCall, error: Exception) -> None:
    """End the span of a tool that tells the model of its failure, or asks it to try again, by raising."""
    part = getattr(error, "tool_retry", None) or getattr(error, "tool_failed", None)
    # In older versions, retries have the method ``model_response`` instead.
    said = getattr(part, "model_response_str", None) or getattr(part, "model_response", None)
    if said is not None:
        call.returned(said, failed=True)
        call.end()


def _told(part: Any, result: Any) -> str:
    """Return a tool's result as the model gets it, without files."""
    from pydantic_ai.messages import ToolReturn, ToolReturnPart

    value = result.return_value if isinstance(result, ToolReturn) else result
    return ToolReturnPart(part.tool_name, value, part.tool_call_id).model_response_str()
