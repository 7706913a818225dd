"""TRL's side: its GRPOTrainer with its own generation and its own loop of tool calls, in its own environment.

As in ours, weights and optimizer are float32 (a step of 5e-5 changes 8 % of bfloat16 weights), matrix products and the
copy of the weights that tokens are drawn from have the plan's dtype, and loss, clip range, and optimizer are the same.
This side is set up for speed on a CPU: no gradient checkpointing, no reference model, one pass over each batch. A model
call may sample as many tokens as in ours, and one use of the tool is allowed. Learning rate and micro-batches are the
plan's.
"""

import os
import sys
import time
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
from trl.chat_template_utils import qwen3_schema  # pyright: ignore[reportMissingImports]

from benchmarks.training.trl_sides.calculator import calculator
from benchmarks.training.trl_sides.record import Plan, Record, Watch


class Score:
    """The reward function, which remembers what it gave since ``mean`` was last called."""

    __name__ = "score"

    def __init__(self, tasks: dict[str, Any], score: Any) -> None:
        self._tasks, self._score, self._given = tasks, score, []

    def __call__(self, completions: list[list[dict]], task_id: list[str], **_: Any) -> list[float]:
        rewards = [self._of(messages[-1], task) for messages, task in zip(completions, task_id, strict=True)]
        self._given += rewards
        return rewards

    def _of(self, last: dict, task_id: str) -> float:
        # As in ours: an attempt that ends with a call of the tool, or with nothing after it, has not answered.
        answered = last["role"] == "assistant" and not last.get("tool_calls")
        return self._score(last["content"], self._tasks[task_id]) if answered else 0.0

    def mean(self) -> float:
        mean = sum(self._given) / len(self._given)
        self._given.clear()
        return mean


class WritesDown(TrainerCallback):
    """Records a line for each step, and ends the run when the plan is done."""

    def __init__(self, record: Record, score: Score) -> None:
        self._record, self._score = record, score
        self._watch: Any = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._watch = Watch(time.process_time)
        limit = self._record.plan.step_limit_cpu_s
        if limit is not None:
            Thread(target=self._end_at, args=(self._watch, limit, state.global_step + 1), daemon=True).start()

    def _end_at(self, watch: Watch, limit_cpu_s: float, step: int) -> None:
        while self._watch is watch:
            time.sleep(1)
            if watch.cpu_s >= limit_cpu_s:
                self._record.step(watch.ended(step, 0.0, unfinished=True))
                os._exit(0)  # in the middle of the step, whose result is not needed

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        watch, self._watch = self._watch, None
        self._record.step(watch.ended(state.global_step, self._score.mean()))
        if self._record.done:
            control.should_training_stop = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._record.evaluated(state.global_step, self._score.mean())
        if self._record.done:
            control.should_training_stop = True


class LikeOurs(GRPOTrainer):
    """Draws tokens from a copy of its float32 weights in another dtype, and evaluates with the most likely ones."""

    def __init__(self, *, model: str, drawn_with: torch.dtype, **settings: Any) -> None:
        super().__init__(model=model, **settings)
        self._copy: Any = AutoModelForCausalLM.from_pretrained(model, dtype=drawn_with).eval()
        trained: Any = self.model
        trained.generate = self._copy.generate  # unwrapped, this is the model that TRL draws with

    def _generate(self, prompts: list) -> Any:
        trained: Any = self.model
        self._copy.load_state_dict(trained.state_dict())
        return super()._generate(prompts)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        self.generation_config.do_sample = False
        try:
            return super().evaluate(*args, **kwargs)
        finally:
            self.generation_config.do_sample = True


def main(folder: Path) -> None:
    record = Record(folder)
    plan = record.plan
    sys.path.insert(0, plan.examples_dir)
    import tasks  # pyright: ignore[reportMissingImports]

    train = [task for step in range(1, plan.schedule_steps + 1) for task in tasks.train_tasks(step, plan.groups)]
    # Ids of tasks repeat from step to step; these ids are unique over all steps.
    train = {f"{number}": task for number, task in enumerate(train)}
    held_out = {task.id: task for task in tasks.heldout_tasks(plan.held_out)}
    score = Score({**train, **held_out}, tasks.score)
    tokenizer = AutoTokenizer.from_pretrained(plan.model_dir)
    tokenizer.response_schema = qwen3_schema  # Hermes' form of tool calls, which the model's template asks for
    trainer = LikeOurs(
        model=plan.model_dir,
        drawn_with=getattr(torch, plan.dtype),
        reward_funcs=score,
        args=_arguments(plan, folder),
        train_dataset=_dataset(plan, train),
        eval_dataset=_dataset(plan, held_out),
        processing_class=tokenizer,
        tools=[calculator],
        callbacks=[WritesDown(record, score)],
    )
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(folder)))


def _dataset(plan: Plan, tasks: dict[str, Any]) -> Dataset:
    return Dataset.from_list(
        [
            {"task_id": name, "prompt": [*plan.before_question, {"role": "user", "content": task.question}]}
            for name, task in tasks.items()
        ]
    )


def _arguments(plan: Plan, folder: Path) -> GRPOConfig:
    return GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=plan.dtype == "bfloat16",
        model_init_kwargs={"dtype": "float32"},
        gradient_checkpointing=False,
        per_device_train_batch_size=plan.micro_batch,
        gradient_accumulation_steps=plan.groups * plan.size // plan.micro_batch,
        num_generations=plan.size,
        max_steps=plan.schedule_steps,
        learning_rate=plan.lr,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": plan.min_lr_ratio},
        max_grad_norm=1.0,
        beta=0.0,
        loss_type="dapo",  # the mean over all tokens
        epsilon=0.2,
        epsilon_high=0.28,
        adam_beta2=0.99,
        weight_decay=0.0,
        temperature=1.0,
        # Both calls and the tool's answer between them; the limit of one call is below.
        max_completion_length=3 * plan.call_tokens,
        generation_kwargs={"max_new_tokens": plan.call_tokens},
        max_tool_calling_iterations=1,
        shuffle_dataset=False,
        eval_strategy="no" if plan.target is None else "steps",
        eval_steps=plan.evaluate_every,
        per_device_eval_batch_size=32,
        num_generations_eval=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
        report_to=[],
        logging_steps=1,
        disable_tqdm=True,
        seed=0,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
