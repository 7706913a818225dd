"""The import hooks: which module gets which hook, at the module's first import and never before.

This is the only place that knows the names of adapters; each is imported only when its framework is.
"""

import sys
from functools import partial
from importlib import import_module

import wrapt

from lightning_instrumentation.failures import guarded
from lightning_instrumentation.hooks import patching

_HOOKS: tuple[tuple[str, str], ...] = (
    # (imported module, "our module:function", which is called with the imported module)
    ("concurrent.futures.thread", "lightning_instrumentation.hooks.threads:wrap_executor"),
    ("multiprocessing.pool", "lightning_instrumentation.hooks.threads:wrap_pool"),
    ("concurrent.futures.process", "lightning_instrumentation.hooks.process_pools:wrap_executor"),
    ("multiprocessing.pool", "lightning_instrumentation.hooks.process_pools:wrap_pool"),
    ("multiprocessing.process", "lightning_instrumentation.hooks.process_pools:watch_starts"),
    ("threading", "lightning_instrumentation.hooks.threads:wrap_thread"),
    ("multiprocessing.util", "lightning_instrumentation.hooks.child_processes:deliver_at_end_of_child"),
    ("opentelemetry.sdk.trace", "lightning_instrumentation.hooks.foreign_spans:watch_spans"),
    ("openai._base_client", "lightning_instrumentation.clients.openai.patch:wrap_client"),
    ("httpx", "lightning_instrumentation.clients.httpx:wrap"),
    ("httpx2", "lightning_instrumentation.clients.httpx:wrap"),
    ("requests.sessions", "lightning_instrumentation.clients.requests:wrap"),
    ("aiohttp.client", "lightning_instrumentation.clients.aiohttp:wrap"),
    ("websockets.asyncio.client", "lightning_instrumentation.clients.websockets:wrap"),
    ("websockets.sync.client", "lightning_instrumentation.clients.websockets:wrap"),
    ("botocore.httpsession", "lightning_instrumentation.clients.botocore:wrap"),
    ("langchain_core.runnables.config", "lightning_adapters.langchain:watch_config"),
    ("langchain_core.tracers.context", "lightning_adapters.langchain:watch_models"),
    ("langchain_core.tools.base", "lightning_adapters.langchain:wrap_tools"),
    ("langgraph.pregel", "lightning_adapters.langchain:name_graphs"),
    ("autogen_core._single_threaded_agent_runtime", "lightning_adapters.autogen:carry_scope"),
    ("autogen_core._base_agent", "lightning_adapters.autogen:watch_handlers"),
    ("autogen_core.tools._base", "lightning_adapters.autogen:wrap_tools"),
    ("autogen_core.tools._workbench", "lightning_adapters.autogen:watch_entered_workbenches"),
    ("autogen_ext.tools.mcp._workbench", "lightning_adapters.autogen:watch_workbenches"),
    ("autogen_agentchat.agents", "lightning_adapters.autogen:watch_agents"),
    ("agents.run_internal.run_loop", "lightning_adapters.openai_agents:watch_turns"),
    ("agents.run", "lightning_adapters.openai_agents:watch_turns"),
    ("agents.run_internal.tool_execution", "lightning_adapters.openai_agents:wrap_tools"),
    ("agents.tool", "lightning_adapters.openai_agents:watch_failures"),
    ("pydantic_ai._run_context", "lightning_adapters.pydantic_ai:watch_runs"),
    ("pydantic_ai.tool_manager", "lightning_adapters.pydantic_ai:wrap_tools"),
    ("claude_agent_sdk._internal.transport.subprocess_cli", "lightning_adapters.claude_agent_sdk:watch_transport"),
    ("crewai.agent.core", "lightning_adapters.crewai:watch_agents"),
    ("crewai.lite_agent", "lightning_adapters.crewai:watch_lite_agents"),
    ("crewai.task", "lightning_adapters.crewai:watch_tasks"),
    ("crewai.tools.base_tool", "lightning_adapters.crewai:wrap_tools"),
    ("crewai.tools.structured_tool", "lightning_adapters.crewai:wrap_structured_tools"),
)

_active = False
_removed = False
_waiting: set[tuple[str, str]] | None = None
"""Hooks whose module has not been imported yet; None before the first ``install_hooks``."""


def install_hooks(*, again: bool = True) -> None:
    """Hook modules that are already imported at once, others at their import.

    Args:
        again: whether to install them even after ``remove_hooks``.
    """
    global _active, _removed, _waiting
    if _active or (_removed and not again):
        return
    _active, _removed = True, False
    if _waiting is None:
        _waiting = set(_HOOKS)
        for module, target in _HOOKS:
            wrapt.register_post_import_hook(partial(_hook, module, target), module)
        return
    patching.wrap_again()
    for module, target in sorted(_waiting):
        if module in sys.modules:  # imported in the meantime
            _hook(module, target, sys.modules[module])


def is_active() -> bool:
    """Whether hooks are installed."""
    return _active


def remove_hooks() -> None:
    """Restore the wrapped functions. Listeners registered with frameworks stay: without calls they change nothing."""
    global _active, _removed
    _active, _removed = False, True
    patching.restore_originals()


def _hook(module: str, target: str, imported: object) -> None:
    if _active and _waiting is not None:
        _waiting.discard((module, target))
        guarded(f"hook:{target}", _call, target, imported)


def _call(target: str, imported: object) -> None:
    module, _, function = target.partition(":")
    getattr(import_module(module), function)(imported)
