"""verl's advantage estimators: what each compares, what it is given as ``index`` and ``response_mask``, what it lacks.

One place for the contract, free of torch, so that a configuration is refused before a model is loaded. For all of them
a row is what ``Segment.row_id`` says, ``response_mask`` is 1 on the row's sampled tokens alone (prompts, tool output
and padding are in no row), and the row's credit stands on its last sampled token. ``index`` is what differs: rows with
one index are compared with each other. We give (group id, agent, ``Segment.peers``), so roles are never mixed.

The formulas stay verl's (``verl.trainer.ppo.core_algos``, 0.9.1) and so do the names; an estimator that is registered
with verl by somebody else is let through here and examined by its signature when training starts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

CREDIT = "credit"
"""No estimator: the credits are the advantages."""


@dataclass(frozen=True, slots=True)
class Estimator:
    compares: Literal["group", "batch", "nothing"]
    """Rows of one index; all rows of the batch; none with any other."""
    source: str
    needs: Literal["values", "distribution"] | None = None
    """What the trainer works out for it: a critic's values; or ``old_log_probs`` and the sum of the squared
    probabilities of every next token (``sum_pi_squared``), for which the policy is run once more before the step."""
    lacks: str | None = None
    """What it needs and training does not have, in words; None when it can be used."""


ESTIMATORS: Mapping[str, Estimator] = {
    "grpo": Estimator("group", "DeepSeekMath, arXiv 2402.03300; without the deviation Dr. GRPO, arXiv 2503.20783"),
    "grpo_vectorized": Estimator("group", "as grpo"),
    "grpo_passk": Estimator("group", "pass@k training, arXiv 2503.19595: only the best row, by its lead"),
    "gdpo": Estimator("group", "each reward normalised on its own; with one summed reward it is grpo and a whitening"),
    "rloo": Estimator("group", "leave one out, Ahmadian et al., arXiv 2402.14740"),
    "rloo_vectorized": Estimator("group", "as rloo"),
    "opo": Estimator("group", "length-weighted baseline, arXiv 2505.23585"),
    "gpg": Estimator("group", "group mean, scaled by the share of rows with a reward, arXiv 2504.02546"),
    "reinforce_plus_plus": Estimator("batch", "whitened over all tokens of the batch, arXiv 2501.03262"),
    "reinforce_plus_plus_baseline": Estimator("group", "group mean, then whitened over the batch, arXiv 2501.03262"),
    "remax": Estimator(
        "nothing",
        "arXiv 2310.10505",
        lacks="the reward of a greedy rollout of every task as its baseline, and none is made; "
        "rloo is the closest one without greedy rollouts",
    ),
    "gae": Estimator("nothing", "Schulman et al., arXiv 1506.02438, whitened over the batch", "values"),
    "optimal_token_baseline": Estimator("group", "verl: a baseline a token, from the others there", "distribution"),
    "tir_optimal_token_baseline": Estimator("group", "as optimal_token_baseline, for several turns", "distribution"),
    CREDIT: Estimator("nothing", "credit schemes that take off their baseline themselves, or none at all"),
}


def needs_values(name: str) -> bool:
    known = ESTIMATORS.get(name)
    return known is not None and known.needs == "values"


def needs_distribution(name: str) -> bool:
    known = ESTIMATORS.get(name)
    return known is not None and known.needs == "distribution"


def refusal(name: str) -> str | None:
    """Return why an estimator cannot be used, in one sentence, or None."""
    known = ESTIMATORS.get(name)
    if known is None or known.lacks is None:
        return None
    usable = [other for other, estimator in ESTIMATORS.items() if estimator.lacks is None]
    return f"advantage estimator {name!r} needs {known.lacks}; there are {', '.join(usable)}"
