"""Environments: worlds that respond to a model's actions and score them.

Everything here can be imported with only the standard library: third-party environments run in their own interpreters,
and import the protocol from there.
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
