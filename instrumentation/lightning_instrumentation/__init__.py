"""Two lines that make an agent observable:

    import lightning_instrumentation as lt

    @lt.agent("planner")
    def plan(question): ...

    @lt.tool
    def look_up(order: str) -> str: ...

Importing is light: the code that writes and sends spans is imported at its first use.
"""

from lightning_instrumentation.agent import agent
from lightning_instrumentation.block import State, state, uncaptured
from lightning_instrumentation.errors import ConfigurationError, InstrumentationError
from lightning_instrumentation.feedback import feedback
from lightning_instrumentation.prompts.prompt import prompt
from lightning_instrumentation.reward import reward
from lightning_instrumentation.rollout import Rollout, rollout
from lightning_instrumentation.runtime import Stats, flush, init, shutdown, stats
from lightning_instrumentation.tool import tool

__all__ = [
    "ConfigurationError",
    "InstrumentationError",
    "Rollout",
    "State",
    "Stats",
    "agent",
    "feedback",
    "flush",
    "init",
    "prompt",
    "reward",
    "rollout",
    "shutdown",
    "state",
    "stats",
    "tool",
    "uncaptured",
]
