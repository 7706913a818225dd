"""The active agent, from the metadata of a LangChain run, which foreign instrumentations copy to spans.

The rule is the same as our adapter's: the innermost explicitly chosen name. A node with its own name is the agent.
Inside a prebuilt agent, whose nodes are all called ``model`` and ``tools``, it is the agent's name or, if the agent has
none, that of the nearest enclosing named node.
"""

from collections.abc import Mapping
from typing import Any

_GENERIC_NODES = frozenset({"model", "agent", "tools", "__start__", "__end__"})
_MIDDLEWARE_HOOKS = (".before_agent", ".before_model", ".after_model", ".after_agent")


def agent_of(metadata: Mapping[str, Any]) -> str | None:
    """Return the agent that is active in a run with this metadata (``lc_agent_name``, ``langgraph_node`` ...)."""
    enclosing = str(metadata.get("langgraph_checkpoint_ns") or "").split("|")
    # A level without a colon counts the graphs that a node calls, from the second on.
    levels = (level.partition(":") for level in reversed(enclosing))
    return (
        _chosen(metadata.get("langgraph_node"))
        or _name(metadata.get("lc_agent_name"))
        or next((name for name, is_node, _ in levels if is_node and _chosen(name)), None)
    )


def _chosen(node: Any) -> str | None:
    name = _name(node)
    return None if name is None or name in _GENERIC_NODES or name.endswith(_MIDDLEWARE_HOOKS) else name


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
