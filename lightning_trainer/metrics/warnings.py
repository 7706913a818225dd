"""Known ways in which a run goes wrong, recognized from its rows: pure functions of the history, oldest step first.

Each rule returns a sentence that says what was seen and what to look at, or None. A rule that lacks the numbers it
needs says nothing: what was not measured is not a warning.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median

from lightning_trainer.config.metrics import WarningsConfig
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Outcome

History = Sequence[StepMetrics]
Rule = Callable[[History, WarningsConfig], str | None]

_NOT_OURS = (Reason.NO_AGENT, Reason.NOT_SELECTED, Reason.OTHER_POLICY)
_SIGMAS = 3.0
_RESTRICTED_SHARE = 0.05


def entropy_collapse(history: History, bounds: WarningsConfig) -> str | None:
    """Entropy fell to a small share of the start's while there is still something to learn."""
    entropies = _series(history, "entropy/sampled")
    recent = entropies[-bounds.steps :]
    if len(entropies) <= bounds.steps or _mostly_solved(history[-1]):
        return None
    start = max(entropies[: bounds.start_steps])  # it can fall within them
    if max(recent) >= bounds.entropy_share * start:
        return None
    return (
        f"entropy collapse: {recent[-1]:.3g} nats a token, {start:.3g} at the start; the policy says nearly the same "
        "every time and finds nothing new: lower the learning rate, raise clip_ratio_high, or roll back"
    )


def mismatch_growth(history: History, bounds: WarningsConfig) -> str | None:
    """Engine and trainer disagree ever more on the log-probabilities of the same tokens."""
    gaps = _series(history, "mismatch/abs_mean")
    if len(gaps) < bounds.start_steps + bounds.steps:
        return None
    start, now = median(gaps[: bounds.start_steps]), min(gaps[-bounds.steps :])
    if now <= max(bounds.mismatch_floor, bounds.mismatch_factor * start):
        return None
    return (
        f"mismatch growth: engine and trainer differ by {gaps[-1]:.3g} nats a token on what was sampled, {start:.3g} "
        "at the start; the update learns from other probabilities than those that acted: "
        + (_restricted(history[-1]) or "use float32 on both sides, or lower the learning rate")
    )


def other_weights(history: History, bounds: WarningsConfig) -> str | None:
    """The log-probabilities of engine and trainer are too far apart for the same weights."""
    gaps = _series(history, "mismatch/abs_mean")
    if not gaps or gaps[-1] <= bounds.mismatch_limit:
        return None
    return (
        f"other weights: the recorded log-probabilities and the trainer's differ by {gaps[-1]:.3g} nats a token at "
        f"step {history[-1].step}, which is too far for one model. An engine that [[policy.trusted]] names served "
        'other weights than its line says, or its logprobs are not the "raw" or "processed" ones of that line: correct '
        "the line, or take it out; without such a line, set max_staleness lower and compare the dtype of engine and "
        "trainer"
    )


def zero_variance(history: History, bounds: WarningsConfig) -> str | None:
    """No group had a spread of rewards, several steps in a row."""
    recent = history[-bounds.steps :]
    if len(recent) < bounds.steps or not all(
        0 < row.values.get("groups/total", 0) == row.values.get("groups/zero_variance") for row in recent
    ):
        return None
    told = f"all groups at zero variance for {bounds.steps} steps: within each group every attempt earned the same"
    if all(row.values.get("groups/solved") == row.values["groups/total"] for row in recent):
        return f"{told}, full marks; there is nothing left to learn: make the tasks harder, or stop"
    best = max(history, key=lambda row: row.values.get("reward/mean", -math.inf))
    now, before = (row.values.get("reward/mean", math.nan) for row in (recent[-1], best))
    if best not in recent and now < before - bounds.reward_share * abs(before):
        return (
            f"{told}: {now:.3g}, and {before:.3g} at step {best.step}, so an update since then took away what earned "
            "it; roll back to the version before that step, and set the optimizer's warmup_steps or lower its lr"
        )
    return (
        f"{told}, and not full marks; there is nothing to learn from: make the tasks easier, raise group_size, sample "
        "at a lower temperature if answers fall apart or at a higher one if they are all alike, or show demonstrations "
        "first"
    )


def nothing_selected(history: History, _: WarningsConfig) -> str | None:
    """The step's attempts ended, but none of their calls are the policy's."""
    values = history[-1].values if history else {}
    tokens = sum(values.get(f"ledger/{outcome}", 0.0) for outcome in Outcome)
    if not values.get("attempts/total") or values.get("ledger/trained"):
        return None
    if not tokens:
        return (
            "nothing matches the selection: the step's attempts made no call through the gateway; look at "
            "`lightning-trainer agents` for the agents that were seen and who claims them"
        )
    others = sum(values.get(f"ledger/{Outcome.DROPPED}/{reason}", 0.0) for reason in _NOT_OURS)
    if others < tokens:
        return None
    return (
        f"nothing matches the selection: all {tokens:.0f} sampled tokens of the step are of agents that the policy "
        "does not claim; compare its agents with what `lightning-trainer agents` shows"
    )


def sampling_unknown(history: History, bounds: WarningsConfig) -> str | None:
    """Many tokens are dropped because it is not known what they were drawn from."""
    values = history[-1].values if history else {}
    tokens = sum(values.get(f"ledger/{outcome}", 0.0) for outcome in Outcome)
    unknown = values.get(f"ledger/{Outcome.DROPPED}/{Reason.SAMPLING_UNKNOWN}", 0.0)
    if not tokens or unknown < bounds.unknown_sampling_share * tokens:
        return None
    return (
        f"sampling unknown: {unknown / tokens:.0%} of the step's sampled tokens are dropped, because a parameter of "
        "the requests (top_p, a grammar, beam search ...) changed what they were drawn from and nothing says how; "
        "`lightning-trainer explain --last` names it, docs/sampling.md says what is trained how"
    )


def kl_blowup(history: History, bounds: WarningsConfig) -> str | None:
    """The weights move away from what sampled, or from the reference, faster than clipping can hold."""
    values = history[-1].values if history else {}
    for name, bound, of in (
        ("actor/ppo_kl", bounds.kl, "the weights that sampled"),
        ("reference/kl", bounds.reference_kl, "the reference model"),
    ):
        kl = values.get(name)
        if kl is not None and abs(kl) > bound:
            advice = _restricted(history[-1]) if name == "actor/ppo_kl" else None
            return f"KL blow-up: {kl:.3g} nats a token from {of}, more than {bound:g}; " + (
                advice or "lower the learning rate, or roll back to a version before it"
            )
    return None


def reward_fall(history: History, bounds: WarningsConfig) -> str | None:
    """The reward had risen and falls again, by more than the scatter of its steps.

    The scatter is von Neumann's: half the mean squared difference of successive steps, which a trend does not inflate
    (The Annals of Mathematical Statistics 12, 1941).
    """
    rewards = _series(history, "reward/mean")
    width = bounds.reward_steps
    if len(rewards) < 3 * width:
        return None
    means = [fmean(rewards[end - width : end]) for end in range(width, len(rewards) + 1)]
    start, now, peak = means[0], means[-1], max(means)
    differences = [(later - earlier) ** 2 for earlier, later in pairwise(rewards)]
    variance = fmean(differences) / 2
    scatter = math.sqrt(2 * variance / width)  # of the difference of two means
    if peak - now <= max(bounds.reward_share * (peak - start), _SIGMAS * scatter):
        return None
    steps = [row.step for row in history if "reward/mean" in row.values]
    best = steps[means.index(peak) + width - 1]
    return (
        f"the reward falls: {now:.3g} on average of {width} steps, {peak:.3g} at step {best}; roll back to that "
        "version and lower the learning rate"
    )


def update_skipped(history: History, _: WarningsConfig) -> str | None:
    """The gradient was infinite or not a number; a step without any update, as while a critic warms up, had none."""
    newest = history[-1].values if history else {}
    if not (newest.get("actor/update_skipped") and newest.get("optimizer/updates")):
        return None
    return (
        f"the gradient of step {history[-1].step} was not finite and the weights were left as they were; lower the "
        "learning rate, and look for rewards or logprobs out of all proportion"
    )


RULES: Mapping[str, Rule] = {
    rule.__name__: rule
    for rule in (
        entropy_collapse,
        mismatch_growth,
        other_weights,
        zero_variance,
        nothing_selected,
        sampling_unknown,
        kl_blowup,
        reward_fall,
        update_skipped,
    )
}


def warnings_of(history: History, bounds: WarningsConfig) -> dict[str, str]:
    """Return what is wrong at the newest step, by the name of the rule."""
    found = {name: rule(history, bounds) for name, rule in RULES.items()}
    return {name: sentence for name, sentence in found.items() if sentence is not None}


def _series(history: History, name: str) -> list[float]:
    """Return a metric over the steps that have it; nothing if the newest lacks it, as a warning would be outdated."""
    if not history or name not in history[-1].values:
        return []
    return [row.values[name] for row in history if name in row.values]


def _restricted(row: StepMetrics) -> str | None:
    """Return advice if requests changed what was drawn from: then the weights are not the first thing to check."""
    share = row.values.get("sampling/restricted", 0.0)
    if share < _RESTRICTED_SHARE:
        return None
    return (
        f"{share:.0%} of the tokens were drawn with top_p, a grammar, penalties or the like, so look at these first: "
        "compare with a step without them (docs/sampling.md), and only then use float32 on both sides or lower the "
        "learning rate"
    )


def _mostly_solved(row: StepMetrics) -> bool:
    """Whether most tasks are solved: certainty about those is the goal of training, not a collapse."""
    return row.values.get("groups/solved", 0.0) >= 0.5 * row.values.get("groups/total", math.inf)
