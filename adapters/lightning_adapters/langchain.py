"""LangChain and LangGraph: which agent speaks, and a span for every tool call.

The innermost name that the user chose wins. A model call made directly in a node of a graph is that node's. One made by
an agent of ``create_agent`` happens in a node called ``model`` or ``tools``, a name that the user did not choose, so it
is the agent's (``lc_agent_name``) or, if the agent has no name, the nearest enclosing named node's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.scope import Agent, add_framework
from lightning_instrumentation.tool import ToolCall

_GENERIC_NODES = frozenset({"model", "agent", "tools", "__start__", "__end__"})
_MIDDLEWARE_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")


def agent_of(metadata: Mapping[str, Any]) -> Agent | None:
    """Return who speaks in a run with this metadata; None if it is outside of graphs and does not name an agent."""
    node = metadata.get("langgraph_node")
    agent_name = metadata.get("lc_agent_name")
    namespace = str(metadata.get("langgraph_checkpoint_ns") or "")
    levels = namespace.split("|") if namespace else []
    if node and not _is_generic(str(node)):
        return Agent(str(node), "langgraph", namespace)
    if agent_name:
        # The agent's own graph is the innermost level; the levels around it tell it from an agent with the same name.
        return Agent(str(agent_name), "langchain", "|".join(levels[:-1]))
    for depth in range(len(levels), 0, -1):
        # A level without a colon counts the graphs that a node calls, from the second on.
        name, is_node, _ = levels[depth - 1].partition(":")
        if is_node and not _is_generic(name):
            return Agent(name, "langgraph", "|".join(levels[:depth]))
    return Agent(str(node), "langgraph", namespace, explicit=False) if node else None


def _is_generic(node: str) -> bool:
    return node in _GENERIC_NODES or node.endswith(_MIDDLEWARE_HOOKS)


# -- who speaks in the code that runs here ---------------------------------------------------------------------------


def watch_config(module: Any) -> None:
    """Hook of ``langchain_core.runnables.config``, whose context variable says in which node the code runs."""
    config_of_here: ContextVar[Mapping[str, Any] | None] = module.var_child_runnable_config

    def ask() -> Agent | None:
        run = _model_run.get()
        config = config_of_here.get()
        # A graph that is called between the chunks of a stream has its own config, and the run does not belong to it.
        if run is not None and run.active and run.config is config:
            return run.agent
        metadata = config.get("metadata") if config else None
        return agent_of(metadata) if metadata else None

    add_framework(ask)


# -- who speaks in a model call: its own metadata knows best ---------------------------------------------------------


@dataclass(slots=True)
class _ModelRun:
    """A model run, shared by every context in which it is seen to begin, so that all of them see its end."""

    agent: Agent
    config: object
    """The config where the run began."""
    active: bool = True


_model_run: ContextVar[_ModelRun | None] = ContextVar("lightning.langchain.model_run", default=None)


def watch_models(module: Any) -> None:
    """Hook of ``langchain_core.tracers.context``: registers a handler that every callback manager includes."""
    from langchain_core.callbacks.base import BaseCallbackHandler
    from langchain_core.runnables.config import var_child_runnable_config

    class ModelWatcher(BaseCallbackHandler):
        run_inline = True
        raise_error = False

        def __init__(self) -> None:
            self._runs: dict[UUID, _ModelRun] = {}

        def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **options: Any) -> None:
            guarded("langchain-model", self._begin, run_id, options.get("metadata") or {})

        def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **options: Any) -> None:
            guarded("langchain-model", self._begin, run_id, options.get("metadata") or {})

        def on_llm_end(self, response: Any, *, run_id: UUID, **options: Any) -> None:
            self._end(run_id)

        def on_llm_error(self, error: BaseException, *, run_id: UUID, **options: Any) -> None:
            self._end(run_id)

        def _begin(self, run_id: UUID, metadata: Mapping[str, Any]) -> None:
            agent = agent_of(metadata)
            if agent is not None:
                run = self._runs[run_id] = _ModelRun(agent, var_child_runnable_config.get())
                _model_run.set(run)

        def _end(self, run_id: UUID) -> None:
            run = self._runs.pop(run_id, None)
            if run is not None:
                run.active = False

    watcher = ModelWatcher()
    module.register_configure_hook(ContextVar("lightning.langchain.watcher", default=watcher), inheritable=True)


# -- tools -----------------------------------------------------------------------------------------------------------


def wrap_tools(module: Any) -> None:
    """Hook of ``langchain_core.tools.base``: a tool runs inside its span, so what it does is the span's child."""
    patching.wrap(module, "BaseTool.run", _run)
    patching.wrap(module, "BaseTool.arun", _arun)


def _begin(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ToolCall:
    tool_input = args[0] if args else kwargs.get("tool_input")
    return ToolCall(tool.name, kwargs.get("tool_call_id"), lambda: _arguments(tool, tool_input))


def _arguments(tool: Any, tool_input: Any) -> Any:
    """Return what the model passed, without what the framework injects (state, store)."""
    keep = getattr(tool, "_filter_injected_args", None)
    return keep(tool_input) if isinstance(tool_input, dict) and callable(keep) else tool_input


def _returned(call: ToolCall, output: Any, call_id: object) -> None:
    answer = guarded("tool", _answer_in, output, call_id) or output
    # The tool may have failed and told the model so instead of raising.
    call.returned(lambda: getattr(answer, "content", answer), failed=getattr(answer, "status", None) == "error")


def _answer_in(output: Any, call_id: object) -> Any:
    """Return the message for the model in a ``Command`` to the graph; None if it is no command, or has none."""
    update = getattr(output, "update", None)
    if call_id is None or not isinstance(update, Mapping):
        return None
    messages = update.get("messages")
    listed = messages if isinstance(messages, list) else [messages]
    return next((one for one in listed if getattr(one, "tool_call_id", None) == call_id), None)


def _run(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _begin(instance, args, kwargs) as call:
        output = wrapped(*args, **kwargs)
        _returned(call, output, kwargs.get("tool_call_id"))
    return output


async def _arun(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _begin(instance, args, kwargs) as call:
        output = await wrapped(*args, **kwargs)
        _returned(call, output, kwargs.get("tool_call_id"))
    return output
