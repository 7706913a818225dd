"""What a run did, read back from what its daemon stored: every figure comes from recorded spans and steps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from lightning_trainer.config.file import load_config
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.report import PairedDifference, paired_difference
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.types import Attempt, Call, RolloutMode


@dataclass(frozen=True, slots=True)
class Asked:
    """A held-out task, asked once."""

    reward: float | None
    """None if no reward was recorded: the attempt failed, say before it reached the model."""
    said: tuple[str, ...]
    """What the policy answered to each call."""

    @property
    def success(self) -> bool:
        return self.reward == 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    example: str
    seed: int
    steps: int
    minutes: float
    machine: str
    made: str
    """Day, in UTC."""
    digest: str
    """A digest of the example's files."""
    before: Mapping[str, bool]
    """By held-out task: whether its reward was 1; an attempt without a reward is no success."""
    after: Mapping[str, bool]
    rewards: tuple[float | None, ...]
    """Mean reward of each step's attempts."""
    task: str
    """The held-out task of the two rollouts that are shown (``shown_task``)."""
    question: str
    said_before: tuple[str, ...]
    said_after: tuple[str, ...]
    unscored: Mapping[str, int] | None = None
    """Attempts without a recorded reward, ``before`` and ``after``; None for a run from before they were counted."""

    @property
    def difference(self) -> PairedDifference:
        return paired_difference(list(self.before.values()), [self.after[task] for task in self.before])

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        fields: dict[str, Any] = json.loads(path.read_text())
        for name in ("rewards", "said_before", "said_after"):
            fields[name] = tuple(fields[name])
        return cls(**fields)


async def outcome_of(
    folder: Path, example: str, *, seed: int, minutes: float, machine: str, made: str, digest: str
) -> Outcome:
    """Read a run's store, after its daemon has ended. The keyword arguments are what the store does not know.

    Raises:
        RuntimeError: the held-out tasks were not asked before and after.
    """
    config = load_config(folder / "lightning.toml")
    policy = config.policy[0]
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        steps = await store.steps(policy.name)
        attempts = await store.attempts(mode=RolloutMode.EVALUATE)
        read = read_spans(await store.spans_of_attempts([attempt.attempt_id for attempt in attempts]))
    # Rewards of an attempt as a whole: others are of one call or one agent.
    whole = [one for one in read.evaluations if one.response_id is None and one.agent is None]
    rewards = {one.attempt_id: one.value for one in whole if one.attempt_id}
    calls: dict[str | None, list[Call]] = {}
    for call in read.calls:
        calls.setdefault(call.attempt_id, []).append(call)
    decode = _decoder(resolve_model(policy.model, model_cache()))
    said = {attempt: tuple(decode(call.response_ids) for call in made) for attempt, made in calls.items()}
    before, after = (asked(stage, attempts, rewards, said) for stage in ("before", "after"))
    if not before or before.keys() != after.keys():
        raise RuntimeError(f"{folder}: {len(before)} held-out tasks were asked before and {len(after)} after")
    task = shown_task(before, after)
    first = next(one for one in evaluation("before", attempts, rewards) if one.task_id == task)
    prompt = decode(calls[first.attempt_id][0].prompt_ids) if calls.get(first.attempt_id) else ""
    return Outcome(
        example=example,
        seed=seed,
        steps=len(steps),
        minutes=minutes,
        machine=machine,
        made=made,
        digest=digest,
        before={task: one.success for task, one in before.items()},
        after={task: one.success for task, one in after.items()},
        rewards=tuple(step.metrics.get("reward/mean") for step in steps),
        task=task,
        question=last_question(prompt),
        said_before=before[task].said,
        said_after=after[task].said,
        unscored={
            stage: sum(one.reward is None for one in found.values())
            for stage, found in (("before", before), ("after", after))
        },
    )


def asked(
    stage: str,
    attempts: Sequence[Attempt],
    rewards: Mapping[str, float | None],
    said: Mapping[str | None, tuple[str, ...]],
) -> dict[str, Asked]:
    """Return what became of each task of a stage; ``rewards`` and ``said`` are by attempt."""
    return {
        attempt.task_id: Asked(rewards.get(attempt.attempt_id), said.get(attempt.attempt_id, ()))
        for attempt in evaluation(stage, attempts, rewards)
    }


def shown_task(before: Mapping[str, Asked], after: Mapping[str, Asked]) -> str:
    """Return a task whose rollouts are worth showing: answered in both, and learned, if there is one."""
    answered = [task for task in before if before[task].said and after[task].said]
    learned = [task for task in answered if after[task].success and not before[task].success]
    return next(iter(learned or answered or before))


def evaluation(stage: str, attempts: Sequence[Attempt], rewards: Mapping[str, float | None]) -> list[Attempt]:
    """Return one attempt at each task of a stage; ``attempts`` has the oldest first.

    A program that was interrupted and started again asks the tasks of ``before`` again, of a model that has learned:
    therefore the first scored attempt counts for ``before``, and the last one for ``after``.
    """
    found: dict[str, Attempt] = {}
    for attempt in attempts if stage == "before" else reversed(attempts):
        if _stage(attempt) == stage:
            kept = found.setdefault(attempt.task_id, attempt)
            if rewards.get(kept.attempt_id) is None and rewards.get(attempt.attempt_id) is not None:
                found[attempt.task_id] = attempt
    return list(found.values())


def last_question(prompt: str) -> str:
    """Return what the last message of a rendered prompt asks; before it come instructions and examples.

    Works for templates in the form of ChatML, ``<|im_start|>role ... <|im_end|>``, which the small models have.
    """
    asked = prompt.split("<|im_start|>user\n")[-1]
    return asked.split("<|im_end|>")[0].strip()


def _stage(attempt: Attempt) -> str:
    """Return the stage of ``run/stage/task``, as a runner names an evaluation; a task's name may have slashes too."""
    stages = [part for part in attempt.group_id.split("/") if part in ("before", "after")]
    return stages[0] if stages else ""


def _decoder(model_dir: Path) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, clean_up_tokenization_spaces=False)

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids)).replace("<|im_end|>", "").strip()

    return decode
