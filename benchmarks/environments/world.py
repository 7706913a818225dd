"""A world that does nothing, with texts of any size: whatever else a step costs is the protocol."""

import time

from lightning_trainer.environments import Action, Observation, Step, Task, ToolResult


class World:
    version = "1"

    def __init__(self, *, size: int = 200, turns: int = 1_000_000, busy_ms: float = 0.0) -> None:
        self._text = "x" * size
        self._turns = turns
        self._busy_s = busy_ms / 1000

    def reset(self, task: Task) -> Observation:
        self._left = self._turns
        return Observation(self._text)

    def step(self, action: Action) -> Step:
        self._left -= 1
        until = time.perf_counter() + self._busy_s
        while time.perf_counter() < until:
            pass
        results = tuple(ToolResult(call.id, self._text) for call in action.tool_calls)
        return Step(Observation(self._text, results), 0.0, self._left <= 0)
