"""CPU-seconds of log-probabilities and their gradient, by what the tokens were sampled from.

One matrix of logits for 2,000 tokens over a vocabulary of 49,152 (SmolLM2's), one thread, forward and backward. The
plain function, which was there before the others, is the one for batches without a grammar, top-p, or a penalty.
Building the matrix, which costs a forward and a backward pass of the model, is not included.
"""

import random
import resource
import time
from collections.abc import Callable
from typing import Any

from benchmarks.common.rows import Row, at_most

TITLE = "Log-probabilities of 2,000 tokens, forward and backward, CPU-seconds"
_TOKENS, _VOCABULARY = 2_000, 49_152
_LONGEST = 10.0
"""Seconds: a fraction of what the model itself takes for as many tokens."""


def run(quick: bool) -> list[Row]:
    import torch

    torch.set_num_threads(1)
    tokens = _TOKENS // 10 if quick else _TOKENS
    torch.manual_seed(0)
    logits_RV = torch.randn(tokens, _VOCABULARY)
    plain = _seconds(logits_RV, None)
    rows = [Row("cost", "sampled plainly", plain, "s")]
    for name, entries, shaped in (
        ("top_p: 20 entries left", 20, False),
        ("a grammar: 40,000 entries left", 40_000, False),
        ("a grammar: 20,000 entries left", 20_000, False),
        ("bias and penalties, 1,000 tokens before", None, True),
    ):
        seconds = _seconds(logits_RV, _draws(tokens, entries, shaped))
        rows.append(at_most("cost", name, seconds, _LONGEST, "s", f"{seconds / plain:.1f} times"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    matrices = peak / (4 * tokens * _VOCABULARY)
    return [*rows, Row("cost", "peak memory", matrices, "matrices of logits", note="logits and their gradient are two")]


def _draws(tokens: int, entries: int | None, shaped: bool) -> dict[int, Any]:
    import numpy as np

    from lightning_trainer.sampling import Shaping, pattern_of
    from lightning_trainer.training.tree.drawn import Draw

    source = random.Random(0)
    shaping = Shaping(((5, 1.0),), 0.5, 0.5, 1.2) if shaped else None
    before = np.array([source.randrange(_VOCABULARY) for _ in range(1_000)])
    patterns = []
    for _ in range(8):
        left = None if entries is None else sorted({0, *source.sample(range(_VOCABULARY), entries)})
        patterns.append(None if left is None else pattern_of(left, _VOCABULARY))
    return {row: Draw(shaping, patterns[row % 8], _VOCABULARY, before, 200) for row in range(tokens)}


def _seconds(logits_RV: Any, draws: dict[int, Any] | None) -> float:
    import torch

    from lightning_trainer.training.tree.drawn import DrawnRows
    from lightning_trainer.training.tree.logprobs import DrawnLogProbs, PairLogProbs

    rows = torch.arange(len(logits_RV))
    targets = torch.zeros_like(rows)
    drawn = None if draws is None else DrawnRows(torch.ones(len(logits_RV)), draws)

    def update() -> None:
        logits = logits_RV.detach().requires_grad_()
        pairs = (logits, rows, targets)
        found = PairLogProbs.apply(*pairs) if drawn is None else DrawnLogProbs.apply(*pairs, drawn)
        found.sum().backward()

    return _best_of(update)


def _best_of(update: Callable[[], None], times: int = 3) -> float:
    spent = []
    for _ in range(times):
        began = time.process_time()
        update()
        spent.append(time.process_time() - began)
    return min(spent)
