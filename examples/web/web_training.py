"""What every program that trains an agent in a browser does: held-out pages, training steps, the pages again."""

import argparse
import sys
from typing import Any

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded, Event, Runner

BROWSERS = 4


def main(about: str | None, policy: str, environment: str, agent: dict[str, Any], *, steps: int = 20) -> None:
    """Run as the command line says.

    Args:
        about: the program's documentation, whose first line says what it does.
        environment: when the command line names no other.
        agent: options of the agent.
        steps: when the command line does not say.
    """
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("--policy", default=policy)
    parser.add_argument("--environment", default=environment)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=steps)
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
            agent_options=agent,
            seed=options.seed,
            concurrency=options.concurrency,
            processes=BROWSERS,
            timeout_s=300,
            on_event=show,
        ) as runner:

            def evaluate(stage: str) -> None:
                ended = runner.evaluate_held_out(options.heldout, stage=stage)
                successes = sum(attempt.reward == 1.0 for attempt in ended)
                print(f"{stage}: {successes} of {len(ended)} held-out pages solved", flush=True)

            evaluate("before")
            runner.train(steps=options.steps)
            evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")
