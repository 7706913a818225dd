"""Environments for the tests: one that works, and one for each way not to."""

import os
import signal
import subprocess
import sys
import time

from lightning_trainer.environments import Action, Observation, Step, Task, Tool, ToolResult


class Guess:
    """A number between 1 and 20 in at most ten guesses."""

    def reset(self, task: Task) -> str:
        self.number = task.random().randint(1, 20)
        self.left = 10
        return "Guess my number between 1 and 20."

    def step(self, action: Action) -> tuple[str, float, bool]:
        self.left -= 1
        guess = int(action.text) if action.text.strip().isdecimal() else 0
        if guess == self.number:
            return "yes", 1.0, True
        return "higher" if guess < self.number else "lower", 0.0, self.left == 0


class Adder:
    """Typed tool calls."""

    version = "2"

    def size(self, split: str) -> int:
        return 3 if split == "train" else 2

    def reset(self, task: Task) -> Observation:
        return Observation(
            "Add 2 and 3.", tools=(Tool("add", "Add.", {"type": "object"}),), instructions="Use the tool."
        )

    def step(self, action: Action) -> Step:
        if action.text == "5":
            return Step(Observation("right"), 1.0, True)
        results = (ToolResult(call.id, str(call.arguments["a"] + call.arguments["b"])) for call in action.tool_calls)
        return Step(Observation(tool_results=tuple(results), state="added"), None, False)


class Alike:
    """Starts every task in the same way."""

    holds_out = False

    def reset(self, task: Task) -> str:
        return "Say something."

    def step(self, action: Action) -> tuple[str, float, bool]:
        return "fine", 1.0, True


class Endless:
    """Pays for every step and never ends."""

    holds_out = False

    def reset(self, task: Task) -> str:
        return "Say something."

    def step(self, action: Action) -> tuple[str, float, bool]:
        return "go on", 0.5, False


class Parts:
    """Two steps; each has a reward with parts, and the second one names one by ``wrong``."""

    def __init__(self, wrong: str = "") -> None:
        self.wrong = wrong

    def reset(self, task: Task) -> str:
        self.steps = 0
        return "Say something."

    def step(self, action: Action) -> Step:
        self.steps += 1
        if self.steps == 1:
            return Step(Observation("go on"), 0.5, False, {"format": 1.0, "short": 0.25})
        return Step(Observation("fine"), None, True, {self.wrong or "format": 1.0, "score": 3})


class Closes(Guess):
    """Notes in a file that it was made, and that it was closed."""

    def __init__(self, path: str, how: str = "well") -> None:
        self.path = path
        self.how = how
        self.note("made")

    def step(self, action: Action) -> tuple[str, float, bool]:
        if action.text == "break":
            raise ValueError("it broke")
        return super().step(action)

    def close(self) -> None:
        self.note("closed")
        if self.how == "hangs":
            time.sleep(600)
        if self.how == "raises":
            raise RuntimeError("it cannot be closed")

    def note(self, what: str) -> None:
        with open(self.path, "a") as file:
            file.write(f"{what}\n")


class Broken:
    """``worlds.py:Broken:hangs`` and so on: well until its second step."""

    def __init__(self, how: str, pids: str = "") -> None:
        self.how = how
        self.pids = pids
        if how == "start":
            raise RuntimeError("no such game")

    def reset(self, task: Task) -> str:
        print("this is not an answer", flush=True)
        self.steps = 0
        if self.how == "starts a child":
            code = "import time; time.sleep(600)"
            quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
            child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **quiet)
            with open(self.pids, "w") as file:
                file.write(f"{os.getpid()} {child.pid}")
        return "begin"

    def step(self, action: Action) -> object:
        self.steps += 1
        if self.steps < 2:
            return "go on", 0.0, False
        return {
            "hangs": lambda: time.sleep(600),
            "spins": spin,
            "dies": lambda: os.kill(os.getpid(), signal.SIGSEGV),
            "exits": lambda: os._exit(3),
            "leaves": lambda: sys.exit("I go"),
            "raises": lambda: 1 / 0,
            "says nothing": lambda: None,
            "says a set": lambda: ({1, 2}, 0.0, False),
            "gives nan": lambda: ("x", float("nan"), False),
            "gives text": lambda: ("x", "1.0", False),
            "may be done": lambda: ("x", 1.0, "maybe"),
            "talks": lambda: ("x" * (4 << 20), 0.0, False),
            "writes into the pipe": write_into_the_pipe,
            "leaks": leak,
            "leaks in a child": lambda: leak_in_a_child(),
            "starts a child": lambda: time.sleep(600),
        }[self.how]()


def spin() -> None:
    while True:
        pass


def leak() -> object:
    held = []
    while True:
        held.append(bytearray(8 << 20))


def leak_in_a_child() -> object:
    code = "held = [b'x' * (8 << 20) for _ in range(20)]; import time; time.sleep(600)"
    child = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    time.sleep(600)
    return child


def write_into_the_pipe() -> object:
    for descriptor in range(3, 20):
        try:
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("pipe:"):
                os.write(descriptor, b'{"observation": 1}\n{"observation": 2}\n')
        except OSError:
            continue
    return "x", 0.0, False
