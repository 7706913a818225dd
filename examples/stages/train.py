"""Train the search agent in three stages: held-out questions, format, actions, whole tasks, the same questions again.

    lightning-trainer serve --config examples/stages/lightning.toml
    python examples/stages/train.py --steps 24

Agent and tasks are those of examples/search. Every call gets the reward `action`, every attempt that of its answer; the
stage (lightning.toml) says which of them is trained. Mobile-R1 (arXiv 2506.20332) trains in the same order.
"""

import sys
from pathlib import Path

import lightning_instrumentation as lt

sys.path += [str(Path(__file__).parents[1] / name) for name in ("search", "distil")]

from agent import ask, solve  # pyright: ignore[reportMissingImports]
from corpus import search  # pyright: ignore[reportMissingImports]
from expert import actions  # pyright: ignore[reportMissingImports]
from search_training import main  # pyright: ignore[reportMissingImports]
from tasks import Task, score  # pyright: ignore[reportMissingImports]

FORMAT = 0.2
"""What an action of the right kind is worth, where it is not the right one."""


def worth(said: str, right: str | None) -> float:
    """Return what an action is worth next to the expert's; None: the expert had nothing more to do."""
    if right is None:
        return 0.0
    (kind, _, words), (right_kind, _, right_words) = said.partition(":"), right.partition(":")
    if kind.strip().lower() != right_kind:
        return 0.0
    if right_kind == "search":
        return 1.0 if search(words) == search(right_words) else FORMAT
    return 1.0 if words.strip() == right_words.strip() else FORMAT


def sample(task: Task) -> float:
    """One attempt in training, with a reward for each of its calls."""
    script = iter(actions(task))

    def say(messages: list[dict[str, str]], temperature: float) -> str:
        said, response_id = ask(messages, temperature)
        lt.reward(worth(said, next(script, None)), "action", response_id=response_id)
        return said

    return score(solve(task.question, temperature=1.0, say=say), task)


if __name__ == "__main__":
    main(__doc__, "stages", sample, steps=24)
