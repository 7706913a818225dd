"""Train an agent to use an MCP server's tools: held-out tasks, training steps, the same held-out tasks again.

    lightning-trainer serve --config examples/tools/lightning.toml
    python examples/tools/train.py --steps 24

Nothing is known of the server but its tools, whose names and schemas are offered to the model: the tasks and the
demonstrations of a cold start are made from them (tasks.py). After `--` comes the command of another server. The steps
of imitation are the daemon's own; --steps counts them too.
"""

import argparse
import subprocess
import sys

from tasks import SERVER, made

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded, Event, Runner
from lightning_trainer.rollouts.task_file import Epochs

TASKS_PER_STEP = 8
"""The policy's groups_per_step."""
AGENT = {"max_tokens": 40, "max_turns": 4}
"""A call of a tool has some 30 tokens; the third turn of two calls is the answer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--policy", default="tools")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--heldout", type=int, default=64)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("server", nargs="*", default=SERVER, help="command of an MCP server")
    options = parser.parse_args()

    def show(event: Event) -> None:
        if not isinstance(event, AttemptEnded):
            print(f"step {event.step}: reward {event.reward_mean}, {event.rollout_s + event.wait_s:.0f} s", flush=True)
        elif event.error is not None:
            print(f"task {event.task_id}: {event.error}", flush=True)

    try:
        tasks = made(options.server)
        with Runner.from_environment(
            "mcp",
            policy=options.policy,
            agent_options=AGENT,
            seed=options.seed,
            concurrency=options.concurrency,
            processes=16,  # more than two cores can play at once
            timeout_s=240,
            on_event=show,
        ) as runner:
            # A seed and a step name the tasks, so an interrupted run goes on with the same ones.
            order = Epochs(tasks.train, per_step=TASKS_PER_STEP, seed=options.seed)
            named = runner.environment.named_task

            def evaluate(stage: str) -> None:
                held_out = [named(task.id, task.fields) for task in tasks.held_out[: options.heldout]]
                ended = runner.evaluate(held_out, stage=stage)
                successes = sum(attempt.reward == 1.0 for attempt in ended)
                print(f"{stage}: {successes} of {len(ended)} held-out tasks solved", flush=True)

            evaluate("before")
            runner.train(lambda step: [named(task.id, task.fields) for task in order(step)], steps=options.steps)
            evaluate("after")
    except subprocess.CalledProcessError:
        sys.exit("error: no tasks could be made of the server")
    except LightningError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
