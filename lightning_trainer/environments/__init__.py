"""Environments: worlds that answer what a model does, and score it.

Everything here can be imported where only the standard library is: third-party environments run in interpreters of
their own, and see the protocol from there.
"""

from lightning_trainer.environments.protocol import (
    Action,
    Environment,
    Observation,
    Step,
    Task,
    Tool,
    ToolCall,
    ToolResult,
)

__all__ = ["Action", "Environment", "Observation", "Step", "Task", "Tool", "ToolCall", "ToolResult"]
