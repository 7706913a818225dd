"""OpenAI Agents SDK: which agent speaks, and a span for every function tool, including agents used as tools.

A run is a sequence of turns, each of one agent: after a handoff, the next turn is another agent's. A turn covers the
agent's model call and its tools, in ``Runner.run``, ``run_sync`` and ``run_streamed`` alike. The SDK's own tracing is
neither needed nor touched: it may be switched off, and its exports go to its own host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import wrapt
from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Agent, Scope, await_inside, with_agent
from lightning_instrumentation.tool import ToolCall

_RUN_LOOP = "agents.run_internal.run_loop"
_TURNS = {
    _RUN_LOOP: ("run_single_turn", "run_single_turn_streamed", "resolve_interrupted_turn"),
    "agents.run": ("run_single_turn", "resolve_interrupted_turn"),
}
"""The functions that run a turn, by the modules that import and call them."""


def watch_turns(module: Any) -> None:
    """Hook of the modules that run turns; a module ``agents.run`` of the user's own is left alone."""
    if _RUN_LOOP not in sys.modules:
        return
    for name in _TURNS[module.__name__]:
        # A module may already have imported the wrapped function from the other.
        if not isinstance(getattr(module, name), wrapt.FunctionWrapper):
            patching.wrap(module, name, _turn)


def _turn(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    scope = guarded("openai-agents-turn", _scope_of, args, kwargs)
    work = wrapped(*args, **kwargs)
    return work if scope is None else await_inside(scope, work)


def _scope_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Scope:
    bindings = kwargs["bindings"] if "bindings" in kwargs else args[1]
    return with_agent(Agent(str(bindings.public_agent.name), "openai-agents"))


def wrap_tools(module: Any) -> None:
    """Hook of ``agents.run_internal.tool_execution``, where a tool runs after it was approved."""
    patching.wrap(module, "_invoke_function_tool_with_metadata", _run_tool)


_running: ContextVar[_Running | None] = ContextVar("lightning.openai_agents.running", default=None)


class _Running:
    """A tool that is running, and whether it raised an exception that a user's function reported to the model."""

    def __init__(self, tool: Any) -> None:
        self.tool = tool
        self.raised = False


def watch_failures(module: Any) -> None:
    """Hook of ``agents.tool``: the SDK marks a tool's exception only if the SDK's own function reports it."""
    name = "maybe_invoke_function_tool_failure_error_function"
    if hasattr(module, name):  # older versions lack it
        patching.wrap(module, name, _explain)


async def _explain(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    said = await wrapped(*args, **kwargs)
    running = _running.get()
    if said is not None and running is not None and running.tool is kwargs.get("function_tool"):
        running.raised = True
    return said


async def _run_tool(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tool, context = kwargs.get("function_tool"), kwargs.get("context")
    name = getattr(context, "qualified_tool_name", None) or getattr(tool, "name", "")
    with ToolCall(name, getattr(context, "tool_call_id", None), lambda: kwargs.get("arguments", "")) as call:
        running, before = _Running(tool), _running.get()
        _running.set(running)
        try:
            result = await wrapped(*args, **kwargs)
        finally:
            # Not by token: if a loop ends before the tool does, garbage collection closes this in another context.
            if _running.get() is running:
                _running.set(before)
        # The SDK tells the model of a tool's exception instead of raising it.
        failed = running.raised or bool(getattr(result, "is_sdk_generated_error", False))
        call.returned(lambda: result.output, failed=failed)
    return result
