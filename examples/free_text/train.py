"""Train a reader by its own probability of a reference answer: held-out notes, training steps, the same notes again.

Nothing here scores an answer. The configuration's judge "known" asks the policy's own engine how probable the reference
is after the agent's reasoning, minus how probable it is without it (docs/rewards.md, `reference_probability`).

    lightning-trainer serve --config examples/free_text/lightning.toml
    python examples/free_text/train.py --steps 24
"""

import argparse
import json
import re
import subprocess
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import lightning_instrumentation as lt
import openai
from tasks import Task, heldout_tasks, train_tasks

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded, Event, Runner

CONFIG = Path(__file__).with_name("lightning.toml")
TASKS_PER_STEP = 6
"""The policy's groups_per_step."""
EXAMPLES = [
    {
        "role": "user",
        "content": "Max laughed because the dog had stolen a shoe. Eva slept because the day was long.\n"
        "Max laughed. Why?",
    },
    {
        "role": "assistant",
        "content": "Max laughed because the dog had stolen a shoe. The answer is the dog stole a shoe.",
    },
    {
        "role": "user",
        "content": "Ben sang because the sun was shining. Ida cried because the cup had fallen down.\nIda cried. Why?",
    },
    {"role": "assistant", "content": "Ida cried because the cup had fallen down. The answer is the cup fell down."},
]
"""A model of this size must be shown what an answer looks like."""
TEMPERATURE = 0.7
"""In training: at first, one answer in fifteen names the right cause at 1.0, and one in four at 0.5."""


@lt.agent("reader")
def answer(client: openai.OpenAI, question: str, temperature: float) -> str:
    messages = [*EXAMPLES, {"role": "user", "content": question}]
    made = client.chat.completions.create(
        model="reader",
        messages=messages,  # pyright: ignore[reportArgumentType]
        max_tokens=40,
        temperature=temperature,
    )
    return made.choices[0].message.content or ""


def judged(since: datetime) -> tuple[float, float, float]:
    """Have the held-out attempts judged, and return how probable the reference was with the reasoning, without it, and
    the mean reward."""
    command = [sys.executable, "-m", "lightning_trainer", "judge", "--judge", "known", "--json"]
    done = subprocess.run(
        [*command, "--since", since.isoformat(), "--config", str(CONFIG)], capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"error: not every held-out attempt could be judged\n{done.stderr}{done.stdout}")
    verdicts = json.loads(done.stdout)["judged"]
    told = [re.findall(r"\d\.\d{4}", one["reason"])[:2] for one in verdicts]
    means = [sum(float(both[place]) for both in told) / len(told) for place in (0, 1)]
    return means[0], means[1], sum(one["value"] for one in verdicts) / len(verdicts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--heldout", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--endpoint", default="http://127.0.0.1:8321")
    options = parser.parse_args()
    lt.init(options.endpoint)
    # The gateway records the ids that were sampled; lightning's client adds the daemon's token.
    client = openai.OpenAI(base_url=f"{options.endpoint}/v1", api_key="unused")

    quoted: list[bool] = []

    def attempt(task: Task, temperature: float) -> None:
        quoted.append(task.cause in answer(client, task.question, temperature).lower())

    def show(event: Event) -> None:
        if not isinstance(event, AttemptEnded):
            print(
                f"step {event.step}: {event.rollout_s:.0f} s of answers, {event.wait_s:.0f} s of training", flush=True
            )
        elif event.error is not None:
            print(f"task {event.task_id}: {event.error}", flush=True)

    def evaluate(stage: str) -> None:
        since = datetime.now(UTC)
        quoted.clear()
        runner = Runner(
            "reader",
            partial(attempt, temperature=0.0),
            run=f"free-text-{stage}-{time.time():.0f}",
            endpoint=options.endpoint,
            concurrency=options.concurrency,
            on_event=show,
        )
        runner.evaluate(heldout_tasks(options.heldout), stage=stage)
        lt.flush()  # so that the daemon knows of every attempt that has ended
        known, guessed, reward = judged(since)
        print(
            f"{stage}: held-out references have probability {known:.3f} after the reasoning, {guessed:.3f} without it; "
            f"reward {reward:.3f}; {sum(quoted)} of {len(quoted)} answers quote the right cause, which no reward sees",
            flush=True,
        )

    try:
        runner = Runner(
            "reader",
            partial(attempt, temperature=TEMPERATURE),
            run=f"free-text-{options.seed}",
            endpoint=options.endpoint,
            concurrency=options.concurrency,
            on_event=show,
        )
        if not runner.steps_done():  # a run that continues has done this before
            evaluate("before")
        runner.train(lambda step: train_tasks(step, TASKS_PER_STEP, seed=options.seed), steps=options.steps)
        evaluate("after")
    except LightningError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
