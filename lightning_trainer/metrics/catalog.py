"""A short description of every metric, by name: for charts, for OpenMetrics, and for the table in docs/operations.md.

Some algorithms report further metrics of verl, which are described only by their names.
"""

from collections.abc import Mapping

ABOUT: Mapping[str, str] = {
    "reward/mean": "mean reward of the step's scored attempts",
    "reward/deviation": "standard deviation of a group's rewards, mean over the step's groups",
    "reward/deviation_floor": "deviation below which a group was left out",
    "groups/total": "groups of the step",
    "groups/kept": "groups that were trained",
    "groups/zero_variance": "groups whose rewards were all equal",
    "groups/low_variance": "groups whose rewards differed too little to train on",
    "groups/refused": "groups that could not be compared",
    "groups/solved": "groups whose rewards were all 1.0",
    "attempts/total": "attempts of the step",
    "attempts/scored": "attempts with a reward",
    "attempts/incomplete": "attempts that went on without some of their spans",
    "response_length/mean": "sampled tokens of a call, mean",
    "response_length/max": "sampled tokens of a call, the most",
    "response_length/clip_ratio": "share of the responses that the limit of tokens ended",
    "prompt_length/mean": "tokens of a call's prompt, mean",
    "prompt_length/max": "tokens of a call's prompt, the most",
    "num_turns/mean": "calls of the policy's agents in an attempt, mean",
    "num_turns/max": "calls of the policy's agents in an attempt, the most",
    "entropy/sampled": "mean of -log p of the trained tokens under what sampled them, nats a token",
    "sampling/restricted": "share of the sampled tokens drawn with a grammar, top_p, penalties or the like",
    "sampling/no_choice": "share of the sampled tokens that were the only one left",
    "experts/replayed": "share of the tokens that went through the experts that the engine took",
    "staleness/mean": "versions published after the one that sampled a token, mean over tokens",
    "staleness/max": "versions published after the one that sampled a token, the most",
    "mismatch/abs_mean": "|trainer - engine| of the sampled tokens' log-probabilities, nats, mean",
    "mismatch/abs_max": "|trainer - engine| of the sampled tokens' log-probabilities, nats, largest",
    "probe/max_abs": "|trainer - engine| on the publication's probe, nats, largest",
    "probe/mean_abs": "|trainer - engine| on the publication's probe, nats, mean",
    "actor/ppo_kl": "KL from the weights that sampled, nats a token",
    "reference/kl": "KL from the reference model at the sampled tokens (k3), nats a token",
    "kl_loss": "KL from the reference model as the loss has it, added up as loss_agg_mode says",
    "kl_reward": "KL from the reference model as taken off the rewards, nats a token before its coefficient",
    "actor/pg_loss": "policy loss, mean over the step's updates",
    "actor/pg_clipfrac": "share of the tokens that were clipped",
    "actor/pg_clipfrac_lower": "share of the tokens that were clipped by the lower bound of dual clip",
    "actor/pg_clipfrac/unmoved": "share of the tokens clipped in the first update, whose weights have not moved",
    "actor/update_skipped": "share of the updates whose gradient was not finite",
    "loss": "whole loss, mean over the step's updates",
    "grad_norm": "norm of the gradient, mean over the step's updates",
    "grad_norm/max": "norm of the gradient, the largest of the step",
    "lr": "learning rate",
    "optimizer/updates": "the policy's optimizer steps in the step",
    "critic/vf_loss": "the critic's loss",
    "critic/vf_clipfrac": "share of the critic's values that were clipped",
    "critic/vpred_mean": "mean of the critic's values",
    "tokens/trained": "tokens in the loss, each counted once",
    "tokens/computed": "tokens through the model, shared prefixes once an update",
    "tokens/sequential": "tokens through the model if nothing were shared",
    "ledger/trained": "sampled tokens that were trained",
    "ledger/masked": "sampled tokens that a rule masked",
    "ledger/deduplicated": "sampled tokens recorded twice and counted once",
    "ledger/dropped": "sampled tokens that were dropped with a reason",
    "seconds/rollout": "seconds until the step's attempts had ended",
    "seconds/build": "seconds to build the batch",
    "seconds/advantages": "seconds to work out advantages",
    "seconds/train": "seconds of updates",
    "seconds/publish": "seconds from the trainer's tensors to the first request answered by them",
    "store/bytes": "bytes that the store takes on disk",
    "store/spans": "spans that the store holds",
    "store/deleted_spans": "spans that retention has deleted since the store was made",
}

OF_JUDGES: Mapping[str, str] = {
    "weight": "remaining weight of a corrected judge",
    "labels": "attempts that a judge and what it is checked by have both scored",
    "false_positives": "share of the wrong attempts that a judge calls right",
    "false_negatives": "share of the right attempts that a judge calls wrong",
    "rank_agreement": "how alike a judge and what it is checked by rank attempts",
    "same_again": "how often a judge repeats its verdict when asked again",
    "earlier_is_better": "a judge's score of an attempt placed earlier minus that of the same one placed later",
}
"""What is said of a judge, by the last part of ``judge/NAME/weight``."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Reward": ("reward", "groups", "attempts"),
    "What was sampled": (
        *("response_length", "prompt_length", "num_turns"),
        *("entropy", "sampling", "experts", "staleness"),
    ),
    "Engine and trainer agree": ("mismatch", "probe"),
    "Update": ("actor", "loss", "grad_norm", "lr", "optimizer", "critic", "reference", "kl_loss", "kl_reward"),
    "Tokens": ("tokens", "ledger"),
    "Time": ("seconds",),
    "Store": ("store",),
}
"""Headings, with the first parts of the names below them."""
OTHERS = "Others"


def describe(name: str) -> str | None:
    """Return a metric's description; None if there is none."""
    if name in ABOUT:
        return ABOUT[name]
    if name.startswith("judge/"):
        return OF_JUDGES.get(name.rpartition("/")[2])
    kind, _, reason = name.removeprefix("ledger/").partition("/")
    return f"sampled tokens that were {kind}: {reason}" if name.startswith("ledger/") and reason else None


def group_of(name: str) -> str:
    """Return the heading under which a metric is shown."""
    first = name.partition("/")[0]
    return next((title for title, prefixes in GROUPS.items() if first in prefixes), OTHERS)
