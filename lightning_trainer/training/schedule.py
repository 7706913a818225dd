"""How many optimizer steps a step can have, and warnings about the schedule before a run starts."""

from collections.abc import Iterator

from lightning_trainer.config.algorithms.algorithm import AlgorithmConfig
from lightning_trainer.config.algorithms.losses import POLICY_LOSSES
from lightning_trainer.config.algorithms.presets import PRESETS
from lightning_trainer.training.tree.mini_batches import GROUPS_AT_LEAST

_ROUNDING = 0.01
"""A clip range below this is within the rounding of a bfloat16 engine: 0.02 nats a token, less over a sequence."""
_PLAIN = ("vanilla", "gpg")
"""Losses that are expected to equal policy gradient in a single update."""


def most_mini_batches(algorithm: AlgorithmConfig, groups_per_step: int) -> int:
    """Return the number of mini-batches per epoch if every group of the step is trained."""
    return max(1, min(algorithm.mini_batches, groups_per_step // GROUPS_AT_LEAST))


def schedule_sentences(
    algorithm: AlgorithmConfig, *, groups_per_step: int, max_staleness: int | None, rounds: bool
) -> Iterator[str]:
    """Return warnings about settings that have no effect under the schedule, or probably not the intended one.

    Args:
        groups_per_step: of the policy.
        max_staleness: of the policy; None counts as synchronous, which it is for a runner.
        rounds: whether engine or trainer computes in bfloat16.
    """
    if algorithm.objective != "rl":
        return
    parts = most_mini_batches(algorithm, groups_per_step)
    by_preset = algorithm.preset and PRESETS[algorithm.preset].get("mini_batches") == algorithm.mini_batches
    if parts < algorithm.mini_batches and not by_preset:  # a preset's number belongs to its paper's batch
        yield (
            f"mini_batches = {algorithm.mini_batches} and groups_per_step = {groups_per_step}: a mini-batch has "
            f"{GROUPS_AT_LEAST} groups or more, so there are at most {parts} in an epoch; groups_per_step = "
            f"{GROUPS_AT_LEAST * algorithm.mini_batches} gives all of them"
        )
    loss, known = algorithm.policy_loss, POLICY_LOSSES.get(algorithm.policy_loss)
    if known is None:
        return
    on_policy = not max_staleness or algorithm.recomputes_old_logprobs
    if parts * algorithm.ppo_epochs == 1 and on_policy and loss not in _PLAIN and not known.differs_at_one:
        yield (
            f"policy_loss = {loss!r} has the gradient of plain policy gradient: a step is one update from the weights "
            "that the ratio is taken against, so the ratio is 1; set mini_batches or ppo_epochs above 1 for it to "
            "differ, or leave policy_loss out"
        )
    tight = min(algorithm.clip_ratio_low, algorithm.clip_ratio_high)
    against_engine = not algorithm.recomputes_old_logprobs and loss != "bypass_mode"
    if rounds and against_engine and "clip_ratio_low" in known.reads and tight < _ROUNDING:
        yield (
            f"a clip range of {tight:g} is narrower than what bfloat16 rounds between engine and trainer, so tokens "
            'are clipped before any weight has moved; set old_logprobs = "trainer", or dtype = "float32" in '
            "[engine] and [training]"
        )
