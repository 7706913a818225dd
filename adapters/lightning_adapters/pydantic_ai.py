"""Pydantic AI: which agent speaks; its own instrumentation is not needed.

During a model call, a context variable holds the current run with its agent.
"""

from __future__ import annotations

from typing import Any

from lightning_instrumentation.scope import Agent, add_framework

_NOBODY_CHOSE = "agent"
"""Pydantic AI names an unnamed agent after the variable that holds it."""


def watch_runs(module: Any) -> None:
    """Hook of ``pydantic_ai._run_context``."""
    run_here = getattr(module, "get_current_run_context", None)
    if run_here is None:  # an older version, without that context variable
        return

    def ask() -> Agent | None:
        run = run_here()
        name = getattr(getattr(run, "agent", None), "name", None)
        if not isinstance(name, str) or not name:
            return None
        return Agent(name, "pydantic-ai", str(getattr(run, "run_id", "")), explicit=name != _NOBODY_CHOSE)

    add_framework(ask)
