"""Running an agent over tasks in groups, step by step, against a daemon that trains on what it records.

This is client code: it runs in the agent's process and needs only the standard library and the instrumentation.
"""

from lightning_trainer.rollouts.attempt import AttemptEnded, Event, StepEnded, Task
from lightning_trainer.rollouts.command import Command
from lightning_trainer.rollouts.curriculum import Curriculum
from lightning_trainer.rollouts.on_ray import OnRay
from lightning_trainer.rollouts.prompts.optimizer import PromptOptimizer
from lightning_trainer.rollouts.runner import Runner

__all__ = ["AttemptEnded", "Command", "Curriculum", "Event", "OnRay", "PromptOptimizer", "Runner", "StepEnded", "Task"]
