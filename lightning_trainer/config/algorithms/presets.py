"""Algorithms by the names of their papers: each is a set of settings, any of which can be given next to the preset.

Settings that a preset does not name keep their defaults. Numbers are the papers'; if a paper gives none, the comment
says where the number comes from. ``mini_batches`` is the number of optimizer steps that the paper takes on a batch of
rollouts, each step on its own part of the batch; a batch with fewer groups than the paper's has fewer steps
(``tree/mini_batches.py``).
"""

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

Settings: TypeAlias = Mapping[str, Any]

_NO_DUAL_CLIP = {"clip_ratio_c": math.inf}
_SYMMETRIC_CLIP = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, **_NO_DUAL_CLIP}
_CLIP_HIGHER = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, **_NO_DUAL_CLIP}
_IMITATION = {"policy_loss": "gpg"}
"""-A log p: the objective decides each token's factor ``A``."""
_WHOLE_BATCH = {"drop_zero_variance_groups": False}
"""For algorithms in which groups without a spread still count: in a denominator or statistic, the KL, the critic."""

PRESETS: Mapping[str, Settings] = {
    # Shao et al., DeepSeekMath, arXiv 2402.03300, equation 3 and section 4.2: beta 0.04, k3, a single update after each
    # sampling; the clip range is PPO's.
    "grpo": {
        **_SYMMETRIC_CLIP,
        **_WHOLE_BATCH,
        "advantage": "grpo",
        "loss_agg_mode": "seq-mean-token-mean",
        "kl_loss_coef": 0.04,
        "kl_loss_type": "k3",
    },
    # Liu et al., Understanding R1-Zero-Like Training, arXiv 2503.20783, section 3.2: no division by the deviation nor
    # by the response's length (a constant instead), no KL. The authors' recipe (oat) samples 128 questions 8 times and
    # updates on 128 answers at a time.
    "dr_grpo": {
        "mini_batches": 8,
        **_SYMMETRIC_CLIP,
        **_WHOLE_BATCH,
        "advantage": "grpo",
        "normalize_by_std": False,
        "loss_agg_mode": "seq-mean-token-sum-norm",
    },
    # Yu et al., arXiv 2503.14476, equations 8 to 13: clip-higher, dynamic sampling, token-level loss, overlong shaping;
    # section 4.1: 16 updates for each sampling.
    "dapo": {
        "mini_batches": 16,
        **_CLIP_HIGHER,
        "advantage": "grpo",
        "loss_agg_mode": "token-mean",
        "dynamic_sampling": True,
        "overlong": {},
    },
    # Zheng et al., arXiv 2507.18071, equation 5 and section 5.1: four mini-batches. Their clip range is far below the
    # rounding error of an engine in bfloat16, so the ratio is taken against the trainer's own logprobs.
    "gspo": {
        "mini_batches": 4,
        "old_logprobs": "trainer",
        **_NO_DUAL_CLIP,
        **_WHOLE_BATCH,
        "advantage": "grpo",
        "policy_loss": "gspo",
        "loss_agg_mode": "seq-mean-token-mean",
        "clip_ratio_low": 3e-4,
        "clip_ratio_high": 4e-4,
    },
    # MiniMax-M1, arXiv 2506.13585, equations 4 and 5: no lower bound (a ratio is never below 0), no KL, dynamic
    # sampling and length penalty from DAPO, 16 rounds of updates for each sampling (section 3.1). The paper gives no
    # upper bound; 0.2 is verl's.
    "cispo": {
        "mini_batches": 16,
        "advantage": "grpo",
        "policy_loss": "cispo",
        "loss_agg_mode": "token-mean",
        "clip_ratio_low": 1.0,
        "clip_ratio_high": 0.2,
        "dynamic_sampling": True,
        "overlong": {},
    },
    # Ahmadian et al., Back to Basics, arXiv 2402.14740, equations 6 to 8: REINFORCE on whole sequences, leave one out,
    # KL in the reward (beta 0.03 for TL;DR), batches of 512 trained in two halves.
    "rloo": {
        "mini_batches": 2,
        **_WHOLE_BATCH,
        "advantage": "rloo",
        "policy_loss": "gpg",
        "loss_agg_mode": "seq-mean-token-sum",
        "kl_reward_coef": 0.03,
        "kl_reward_type": "k1",
    },
    # Hu et al., arXiv 2501.03262: KL at every token in the reward, advantages normalized over the batch, PPO's clip and
    # mini-batches; their script (OpenRLHF) samples 1,024 and trains 128 at a time.
    "reinforce_plus_plus": {
        "mini_batches": 8,
        **_SYMMETRIC_CLIP,
        **_WHOLE_BATCH,
        "advantage": "reinforce_plus_plus",
        "loss_agg_mode": "token-mean",
        "kl_reward_coef": 0.01,
        "kl_reward_type": "k1",
    },
    # Schulman et al., arXiv 1707.06347, as applied to language by Ouyang et al., arXiv 2203.02155, appendix C.4:
    # batches of 512 in mini-batches of 64, a single epoch.
    "ppo": {
        "mini_batches": 8,
        **_SYMMETRIC_CLIP,
        **_WHOLE_BATCH,
        "advantage": "gae",
        "loss_agg_mode": "token-mean",
        "gamma": 1.0,
        "lam": 0.95,
        "kl_reward_coef": 0.02,
        "kl_reward_type": "k1",
        "critic": {"cliprange_value": 0.2},
    },
    # Wang et al., RAGEN, arXiv 2504.20073, StarPO-S: the most uncertain quarter of the groups, a critic, no KL,
    # asymmetric clip; gamma, lambda and entropy bonus as in its experiments, in which the kept quarter of 128 is one
    # mini-batch of 32.
    "starpo_s": {
        **_CLIP_HIGHER,
        "advantage": "gae",
        "loss_agg_mode": "token-mean",
        "gamma": 1.0,
        "lam": 1.0,
        "keep_most_uncertain": 0.25,
        "entropy_coeff": 0.001,
    },
    # Supervised fine-tuning: -log p of what is shown, the mean over all shown tokens. Without a file the best attempt
    # of each group is shown (Dong et al., RAFT, arXiv 2304.06767, section 3).
    "sft": {**_IMITATION, "objective": "sft", "loss_agg_mode": "token-mean"},
    # Rafailov et al., arXiv 2305.18290, equation 7, with beta 0.1; its gradient is taken as section 4 writes it.
    # Without a file the best and the worst attempt of each group are the pair, summed over their turns as by Song et
    # al., Trial and Error (arXiv 2403.02502), equation 6.
    "dpo": {**_IMITATION, "objective": "dpo", "loss_agg_mode": "token-sum"},
}


def with_preset(given: Any) -> Any:
    """Fill in those settings of the named preset that are not given.

    Args:
        given: the value of ``algorithm``: a preset's name, or settings, which may include ``preset``.

    Raises:
        ValueError: there is no preset of this name; the message lists the known ones.
    """
    if isinstance(given, str):
        given = {"preset": given}
    if not isinstance(given, Mapping) or given.get("preset") is None:
        return given
    name = given["preset"]
    if not isinstance(name, str) or name not in PRESETS:
        raise ValueError(f"there is no algorithm {name!r}; there are {', '.join(PRESETS)}")
    preset = PRESETS[name]
    nested = {
        key: {**value, **given[key]}
        for key, value in preset.items()
        if isinstance(value, Mapping) and isinstance(given.get(key), Mapping)
    }
    return {**preset, **given, **nested}
