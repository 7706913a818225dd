"""Train an agent to cross a frozen lake: held-out maps, training steps, the same held-out maps again.

    lightning-trainer environments install frozenlake
    lightning-trainer serve --config examples/game/lightning.toml
    python examples/game/train.py --steps 40

Every training step has maps that no other has, and no held-out map is among them.
"""

import argparse
import sys

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded, Event, Runner

ENVIRONMENT = "frozenlake:3x3?frozen=0.8&max_turns=6"
EXAMPLES = [
    {"role": "user", "content": "P O _\n_ _ _\n_ O G"},
    {"role": "assistant", "content": "down"},
    {"role": "user", "content": "_ O _\nP _ _\n_ O G"},
    {"role": "assistant", "content": "right"},
    {"role": "user", "content": "_ _ P\nO _ _\n_ O G"},
    {"role": "assistant", "content": "down"},
    {"role": "user", "content": "_ _ O\nO _ _\n_ P G"},
    {"role": "assistant", "content": "right"},
]
"""A model of this size has to be shown that an answer is a move."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="game")
    parser.add_argument("--environment", default=ENVIRONMENT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--heldout", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=64)
    options = parser.parse_args()

    def show(event: Event) -> None:
        if not isinstance(event, AttemptEnded):
            print(f"step {event.step}: reward {event.reward_mean}, {event.rollout_s + event.wait_s:.0f} s", flush=True)
        elif event.error is not None:
            print(f"task {event.task_id}: {event.error}", flush=True)

    try:
        with Runner.from_environment(
            options.environment,
            policy=options.policy,
            agent_options={"examples": EXAMPLES, "max_tokens": 4, "max_turns": 6, "history": 0},
            seed=options.seed,
            concurrency=options.concurrency,
            processes=16,  # more than two cores can play at once
            timeout_s=240,
            on_event=show,
        ) as runner:

            def evaluate(stage: str) -> None:
                ended = runner.evaluate_held_out(options.heldout, stage=stage)
                successes = sum(attempt.reward == 1.0 for attempt in ended)
                print(f"{stage}: {successes} of {len(ended)} held-out maps crossed", flush=True)

            evaluate("before")
            runner.train(steps=options.steps)
            evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
