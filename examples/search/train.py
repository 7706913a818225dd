"""Train an agent to search until it knows: held-out questions, training steps, the same held-out questions again.

    lightning-trainer serve --config examples/search/lightning.toml
    python examples/search/train.py --steps 40

The agent (agent.py) is not changed and does not know. In training, an attempt that read the answer and did not give it
gets a part of the reward, as in Jin et al. 2025 (arXiv 2505.15117): few attempts are right at first.
"""

from agent import ask, solve
from search_training import main
from tasks import Task, score

FOUND = 0.2
"""What it is worth to have read a passage with the answer."""


def sample(task: Task) -> float:
    """One attempt in training."""
    read: list[str] = []

    def say(messages: list[dict[str, str]], temperature: float) -> str:
        read.append(messages[-1]["content"])
        return ask(messages, temperature)[0]

    right = score(solve(task.question, temperature=1.0, say=say), task)
    return right or FOUND * any(task.answer in passage for passage in read)


if __name__ == "__main__":
    main(__doc__, "search", sample, curriculum=True)
