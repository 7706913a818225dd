"""verl's advantage estimators: what each compares, gets as ``index`` and ``response_mask``, and needs.

The contract is in this one place and does not import torch, so that a configuration is refused before a model is
loaded. For all estimators a row is what ``Segment.row_id`` says, ``response_mask`` is 1 only on the row's sampled
tokens (prompts, tool output and padding are in no row), and the row's credit is on its last sampled token. Rows with
the same ``index`` are compared; we give (group id, agent, ``Segment.peers``), so roles are never mixed.

The formulas and the names stay verl's (``verl.trainer.ppo.core_algos``, 0.9.1). An estimator that someone else
registered with verl is accepted here, and its signature is checked when training starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

CREDIT = "credit"
"""No estimator: the credits are the advantages."""


@dataclass(frozen=True, slots=True)
class Estimator:
    """An advantage estimator of verl: which rows it compares, its source, and what it needs."""

    compares: Literal["group", "batch", "nothing"]
    """Rows with the same index; all rows of the batch; no rows at all."""
    source: str
    needs: Literal["values", "distribution", "baseline"] | None = None
    """What it needs besides rewards: a critic's values; ``old_log_probs`` and the sum of the squared probabilities
    of every next token (``sum_pi_squared``), for which the policy is run once more before the step; or the reward of
    a greedy attempt at every task (``RolloutMode.BASELINE``)."""


ESTIMATORS: Mapping[str, Estimator] = {
    "grpo": Estimator("group", "DeepSeekMath, arXiv 2402.03300; without the deviation Dr. GRPO, arXiv 2503.20783"),
    "grpo_vectorized": Estimator("group", "as grpo"),
    "grpo_passk": Estimator("group", "pass@k training, arXiv 2503.19595: only the best row, by its lead"),
    "gdpo": Estimator("group", "each reward normalized on its own; with one summed reward it is grpo and a whitening"),
    "rloo": Estimator("group", "leave one out, Ahmadian et al., arXiv 2402.14740"),
    "rloo_vectorized": Estimator("group", "as rloo"),
    "opo": Estimator("group", "length-weighted baseline, arXiv 2505.23585"),
    "gpg": Estimator("group", "group mean, scaled by the share of rows with a reward, arXiv 2504.02546"),
    "reinforce_plus_plus": Estimator("batch", "whitened over all tokens of the batch, arXiv 2501.03262"),
    "reinforce_plus_plus_baseline": Estimator("group", "group mean, then whitened over the batch, arXiv 2501.03262"),
    "remax": Estimator("nothing", "reward less that of a greedy attempt, Li et al., arXiv 2310.10505", "baseline"),
    "gae": Estimator("nothing", "Schulman et al., arXiv 1506.02438, whitened over the batch", "values"),
    "optimal_token_baseline": Estimator("group", "verl: a baseline a token, from the others there", "distribution"),
    "tir_optimal_token_baseline": Estimator("group", "as optimal_token_baseline, for several turns", "distribution"),
    CREDIT: Estimator("nothing", "credit schemes that take off their baseline themselves, or none at all"),
}


def needs_values(name: str) -> bool:
    """Whether an estimator needs a critic; False if it is not listed here."""
    known = ESTIMATORS.get(name)
    return known is not None and known.needs == "values"


def needs_distribution(name: str) -> bool:
    """Whether an estimator needs another forward pass before the step, for ``sum_pi_squared``."""
    known = ESTIMATORS.get(name)
    return known is not None and known.needs == "distribution"


def needs_baseline(name: str) -> bool:
    """Whether an estimator needs a greedy attempt at every task."""
    known = ESTIMATORS.get(name)
    return known is not None and known.needs == "baseline"
