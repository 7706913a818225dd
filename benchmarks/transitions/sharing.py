"""How many tokens go through the model for each unique one, by what makes up one sample.

The workload is groups of eight attempts at one task: a common prompt, then turns of one call and one answer of a tool
each. ``stock`` attention computes every token of every sample; ``tree`` attention computes once what a micro-batch
shares. The unique tokens are those of the group's token tree.
"""

from collections.abc import Iterable, Sequence
from random import Random

from benchmarks.common.rows import Row
from benchmarks.transitions import workloads
from benchmarks.transitions.workloads import Shape
from lightning_trainer.config import TrainingConfig
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.types import Attempt, Call

_GROUPS, _MEMBERS = 4, 8
_INSTRUCTIONS, _TASK, _SAMPLED, _OBSERVED = 240, 25, 35, 20


def run() -> list[Row]:
    limit = TrainingConfig().max_tokens_per_micro_batch
    rows: list[Row] = []
    for turns in (5, 10, 20):
        calls, attempts, evaluations = _workload(turns)
        unique = _computed([*call.prompt_ids, *call.response_ids] for call in calls)
        for how in ("calls", "merged", "tree"):
            build = build_batch(calls, attempts, evaluations, workloads.policy(samples=how), step=1)
            assert build.batch is not None, build.problems
            stock = sum(len(sample.token_ids) for sample in build.batch.samples)
            shared = _computed((sample.token_ids for sample in build.batch.samples), limit)
            rows.append(
                Row(
                    "sharing",
                    f"{turns} turns, samples = {how}",
                    stock / unique,
                    "x",
                    note=f"stock attention: {stock:,} tokens of {len(build.batch.samples)} samples over {unique:,} "
                    f"unique; tree attention: {shared:,} ({shared / unique:.2f}x)",
                )
            )
    return rows


def _computed(token_ids: Iterable[Sequence[int]], max_nodes: int | None = None) -> int:
    """Return how many tokens are left if common beginnings of sequences count once, in micro-batches of at most
    ``max_nodes`` tokens or in a single one; it needs numpy, as training does."""
    import numpy as np

    from lightning_trainer.training.tree.trie import build_trie, plan_micro_batches

    sequences = [np.array(ids) for ids in token_ids]
    batches = [range(len(sequences))] if max_nodes is None else plan_micro_batches(sequences, max_nodes)
    return sum(len(build_trie([sequences[index] for index in batch])) for batch in batches)


def _workload(turns: int) -> tuple[tuple[Call, ...], tuple[Attempt, ...], tuple]:
    source, spans = Random(turns), []
    instructions = workloads.tokens(source, _INSTRUCTIONS)
    shape = Shape(turns, _INSTRUCTIONS + _TASK, _SAMPLED, _OBSERVED)
    for group in range(_GROUPS):
        prompt = instructions + workloads.tokens(source, _TASK)
        for member in range(_MEMBERS):
            spans += workloads.rollout(
                f"{group}-{member}", f"g{group}", shape.spans + 1, shape, source, float(member % 2), prompt
            )
    reading = read_spans(spans)
    return reading.calls, reading.attempts, reading.evaluations
