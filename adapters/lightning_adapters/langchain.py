"""LangChain and LangGraph: which agent speaks, and a span for every tool call.

The innermost name that the user chose wins. A model call made directly in a node of a graph belongs to that node. A
call made by an agent of ``create_agent`` happens in a node called ``model`` or ``tools``, a name that the user did not
choose, so the call belongs to the agent (``lc_agent_name``, or the name that its graph was compiled with) or, if the
agent has no name, to the nearest enclosing node or agent that has one.
"""

from __future__ import annotations

from collections import OrderedDict
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


_UNNAMED_GRAPH = "LangGraph"
_MOST_RUNS = 10_000
"""How many runs are remembered: a run whose stream is not read to its end may never end."""


class _Run:
    """A run of LangChain's that has begun: of a graph, a node, a chain, a tool."""

    __slots__ = ("agent_name", "graph", "graph_name", "node", "outlives", "parent", "place")

    def __init__(
        self,
        metadata: Mapping[str, Any],
        parent: _Run | None = None,
        graph_name: str | None = None,
        outlives: bool = False,
    ) -> None:
        self.node = str(metadata.get("langgraph_node") or "")
        self.agent_name = str(metadata.get("lc_agent_name") or "")
        """The name of the agent that set it; everything below that agent inherits it."""
        self.place = str(metadata.get("langgraph_checkpoint_ns") or "")
        self.parent = parent
        self.graph_name = graph_name
        """The name that a graph was compiled with, in its run; None for other runs, or without a name."""
        self.outlives = outlives
        """Whether the run that this one began in is unknown: it had ended (such as a tool whose background task
        continues) or was forgotten."""
        # A run whose place differs from its parent's is a node's, and its parent is the run of the node's graph.
        self.graph: _Run | None = parent if parent is None or parent.place != self.place else parent.graph
        """The run of the innermost graph around this one; None if there is none, or its beginning was not seen."""


def agent_of(metadata: Mapping[str, Any], parent: _Run | None = None) -> Agent | None:
    """Return the agent that speaks in a run with this metadata; None if it is outside of graphs and names no agent."""
    innermost = run = _Run(metadata, parent)
    while run is not None and (graph := run.graph) is not None:
        agent = _named_in(run, graph)
        if agent is not None:
            return agent
        run = graph.parent
    agent = _by_metadata(run) if run is not None else None
    if agent is not None and agent.explicit:
        return agent
    return Agent(innermost.node, "langgraph", innermost.place, explicit=False) if innermost.node else None


def _named_in(run: _Run, graph: _Run) -> Agent | None:
    """Return the agent that a run's node, or the graph that the node is in, names."""
    if run.node and not _is_generic(run.node):
        return Agent(run.node, "langgraph", run.place)
    # The agent's own graph is the innermost level; the levels around it tell it from an agent with the same name.
    place = run.place.rpartition("|")[0]
    around = graph.parent
    if around is not None:
        inherited = run.agent_name == around.agent_name and run.agent_name != graph.graph_name
    else:  # If the run that the name could come from is gone, the name is inherited if the graph has another one.
        inherited = graph.outlives and graph.graph_name not in (None, run.agent_name)
    if run.agent_name and not inherited:
        return Agent(run.agent_name, "langchain", place)
    return Agent(graph.graph_name, "langgraph", place) if graph.graph_name else None


def _by_metadata(run: _Run) -> Agent | None:
    """Return the agent named by the run's metadata, which does not say whether the name is inherited."""
    levels = run.place.split("|") if run.place else []
    if run.node and not _is_generic(run.node):
        return Agent(run.node, "langgraph", run.place)
    if run.agent_name:
        return Agent(run.agent_name, "langchain", "|".join(levels[:-1]))
    for depth in range(len(levels), 0, -1):
        # A level without a colon counts the graphs that a node calls, from the second on.
        name, is_node, _ = levels[depth - 1].partition(":")
        if is_node and not _is_generic(name):
            return Agent(name, "langgraph", "|".join(levels[:depth]))
    return Agent(run.node, "langgraph", run.place, explicit=False) if run.node else None


def _is_generic(node: str) -> bool:
    return node in _GENERIC_NODES or node.endswith(_MIDDLEWARE_HOOKS)


# -- the runs that have begun ----------------------------------------------------------------------------------------


_runs: OrderedDict[UUID, _Run] = OrderedDict()
_graph_name: ContextVar[str | None] = ContextVar("lightning.langchain.graph_name", default=None)


def name_graphs(module: Any) -> None:
    """Hook of ``langgraph.pregel``: a graph asks for its own name right before its run begins.

    The run itself is only told the name that a caller may have given it (``run_name``), such as a ticket's.
    """
    patching.wrap(module, "Pregel.get_name", _get_name)


def _get_name(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(instance, "name", None)
    _graph_name.set(str(name) if name and name != _UNNAMED_GRAPH else None)
    return wrapped(*args, **kwargs)


def _run_begins(run_id: UUID, parent_id: UUID | None, metadata: Mapping[str, Any] | None) -> None:
    graph_name = _graph_name.get()
    if graph_name is not None:
        _graph_name.set(None)
    parent = _run_of(parent_id)
    _runs[run_id] = _Run(metadata or {}, parent, graph_name, outlives=parent is None and parent_id is not None)
    if len(_runs) > _MOST_RUNS:
        _runs.popitem(last=False)


def _run_of(run_id: UUID | None) -> _Run | None:
    return _runs.get(run_id) if run_id is not None else None


# -- who speaks in the code that runs here ---------------------------------------------------------------------------


def watch_config(module: Any) -> None:
    """Hook of ``langchain_core.runnables.config``, whose context variable says in which node the code runs."""
    config_of_here: ContextVar[Mapping[str, Any] | None] = module.var_child_runnable_config

    def ask() -> Agent | None:
        run = _model_run.get()
        config = config_of_here.get()
        # A graph that is called between the chunks of a stream has its own config, and the model run is not part of it.
        if run is not None and run.active and run.config is config:
            return run.agent
        metadata = config.get("metadata") if config else None
        if config is None or not metadata:
            return None
        return agent_of(metadata, _run_of(getattr(config.get("callbacks"), "parent_run_id", None)))

    add_framework(ask)


# -- who speaks in a model call: its own metadata knows best ---------------------------------------------------------


@dataclass(slots=True)
class _ModelRun:
    """A model run, shared by every context in which it is seen to begin, so that all of them see its end."""

    agent: Agent
    config: object
    """The config in effect where the run began."""
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

        def on_chain_start(self, *given: Any, run_id: UUID, parent_run_id: UUID | None = None, **options: Any) -> None:
            guarded("langchain-run", _run_begins, run_id, parent_run_id, options.get("metadata"))

        on_tool_start = on_retriever_start = on_chain_start

        def on_chain_end(self, *given: Any, run_id: UUID, **options: Any) -> None:
            _runs.pop(run_id, None)

        on_chain_error = on_tool_end = on_tool_error = on_retriever_end = on_retriever_error = on_chain_end

        def on_chat_model_start(
            self, *given: Any, run_id: UUID, parent_run_id: UUID | None = None, **options: Any
        ) -> None:
            guarded("langchain-model", self._begin, run_id, parent_run_id, options.get("metadata") or {})

        on_llm_start = on_chat_model_start

        def on_llm_end(self, *given: Any, run_id: UUID, **options: Any) -> None:
            run = self._runs.pop(run_id, None)
            if run is not None:
                run.active = False

        on_llm_error = on_llm_end

        def _begin(self, run_id: UUID, parent_id: UUID | None, metadata: Mapping[str, Any]) -> None:
            agent = agent_of(metadata, _run_of(parent_id))
            if agent is not None:
                run = self._runs[run_id] = _ModelRun(agent, var_child_runnable_config.get())
                _model_run.set(run)

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
    """Return the message for the model in a ``Command`` to the graph; None if it is not a command, or has none."""
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
