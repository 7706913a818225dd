"""Environments of the real verifiers, one of each kind, loaded in the interpreter that has it."""

import random
from typing import Any

import verifiers as vf  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]


def load_environment(kind: str = "single", **options: Any) -> vf.Environment:
    made = {"single": reversing, "multi": guessing, "tool": adding, "group": comparing, "broken": breaking}
    return {**made, "objects": holding}[kind](**options)


async def exact(completion: Any, answer: str) -> float:
    return float((completion[-1].content or "").strip() == answer)


async def short(completion: Any) -> float:
    return float(len(completion[-1].content or "") < 8)


def rows(count: int, first: int = 0) -> Dataset:
    numbers = range(first, first + count)
    return Dataset.from_list([{"question": f"reverse {n + 100}", "answer": str(n + 100)[::-1]} for n in numbers])


def reversing(own_evaluation: bool = False) -> vf.Environment:
    return vf.SingleTurnEnv(
        dataset=rows(40),
        eval_dataset=rows(10, 35) if own_evaluation else None,  # five of them are training's
        system_prompt="Digits alone.",
        few_shot=[{"role": "user", "content": "reverse 12"}, {"role": "assistant", "content": "21"}],
        rubric=vf.Rubric(funcs=[exact, short], weights=[0.75, 0.25]),
    )


class Guessing(vf.MultiTurnEnv):
    """Chance decides the number: every attempt at a task must meet the same."""

    async def setup_state(self, state: Any) -> Any:
        state["number"] = random.randint(1, 20)
        return state

    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        guess = int(messages[-1].content)
        if guess == state["number"]:
            state["final_env_response"] = [vf.UserMessage(content="right")]
            return state["final_env_response"]
        return [{"role": "user", "content": "higher" if guess < state["number"] else "lower"}]


def guessing() -> vf.Environment:
    async def found(state: Any) -> float:
        return float(state.get("final_env_response") is not None)

    questions = [{"question": f"guess number {n} between 1 and 20", "answer": ""} for n in range(40)]
    return Guessing(dataset=Dataset.from_list(questions), rubric=vf.Rubric(funcs=[found]), max_turns=6)


def adding() -> vf.Environment:
    async def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return a + b

    sums = [{"question": f"{n} + {n + 1}", "answer": str(2 * n + 1)} for n in range(40)]
    return vf.ToolEnv(tools=[add], dataset=Dataset.from_list(sums), rubric=vf.Rubric(funcs=[exact]), max_turns=4)


def comparing() -> vf.Environment:
    async def best_of_all(completions: Any) -> list[float]:
        return [0.0 for _ in completions]

    return vf.SingleTurnEnv(dataset=rows(4), rubric=vf.Rubric(funcs=[best_of_all]))


class Breaking(vf.MultiTurnEnv):
    async def env_response(self, messages: Any, state: Any, **_: Any) -> Any:
        raise vf.SandboxError("no sandbox answers")


def breaking() -> vf.Environment:
    return Breaking(dataset=rows(8), rubric=vf.Rubric(funcs=[exact]))


class Holding(vf.SingleTurnEnv):
    """Its rows hold what is no JSON, as decoded pictures are."""

    def get_dataset(self, *given: Any, **more: Any) -> Any:
        rows = super().get_dataset(*given, **more)
        return [{**row, "prompt": [*row["prompt"], {"role": "user", "content": object()}]} for row in rows]


def holding() -> vf.Environment:
    return Holding(dataset=rows(40), rubric=vf.Rubric(funcs=[exact]))
