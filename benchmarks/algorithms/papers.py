"""The settings of each row's formula, with the numbers that the documentation and the papers name.

No setting is read from the project, so a default or a preset that has gone astray shows as a difference.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any


@dataclass(frozen=True, slots=True)
class Formula:
    """Settings by the names of ``docs/training.md`` and ``docs/credit.md``; the defaults are those given there."""

    objective: str = "rl"
    advantage: str = "grpo"
    normalize_by_std: bool = True
    gamma: float = 1.0
    lam: float = 0.95
    policy_loss: str = "vanilla"
    loss_agg_mode: str = "token-mean"
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.28
    clip_ratio_c: float = 3.0
    entropy_coeff: float = 0.0
    kl_loss_coef: float = 0.0
    kl_loss_type: str = "k3"
    kl_reward_coef: float = 0.0
    kl_reward_type: str = "k1"
    tau_pos: float = 1.0
    tau_neg: float = 1.05
    clip_cov_ratio: float = 0.0002
    clip_cov_lb: float = 1.0
    clip_cov_ub: float = 5.0
    kl_cov_ratio: float = 0.0002
    ppo_kl_coef: float = 0.1
    dro_beta: float = 0.0
    old_logprobs: str = "behaviour"
    rollout_is: str | None = None
    rollout_is_threshold: float = 2.0
    rollout_rs: str | None = None
    rollout_rs_threshold: float | str | None = None
    bypass_loss: str = "ppo_clip"
    beta: float = 0.1
    """This one and those below are DPO's."""
    label_smoothing: float = 0.0
    length_normalized: bool = False

    @property
    def corrects_rollouts(self) -> bool:
        """Whether rollouts are corrected outside the loss; ``bypass_mode`` corrects them inside its loss."""
        return self.policy_loss != "bypass_mode" and (self.rollout_is, self.rollout_rs) != (None, None)

    @property
    def old_is_of_the_trainer(self) -> bool:
        return self.old_logprobs == "trainer" or self.corrects_rollouts


@dataclass(frozen=True, slots=True)
class ValueCredit:
    """A credit scheme with a critic; ``gae_bilevel`` uses the second pair for the tokens of a turn."""

    scheme: str
    gamma: float
    lam: float
    gamma_token: float = 1.0
    lam_token: float = 1.0


_GRPO_CLIP: dict[str, Any] = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": inf}
_DAPO_CLIP: dict[str, Any] = {**_GRPO_CLIP, "clip_ratio_high": 0.28}

PAPERS: Mapping[str, Formula] = {
    # arXiv 2402.03300, equations 3 and 4, section 4.2: beta 0.04.
    "grpo": Formula(**_GRPO_CLIP, loss_agg_mode="seq-mean-token-mean", kl_loss_coef=0.04, kl_loss_type="k3"),
    # arXiv 2503.20783, section 3.2: no division by deviation or length; a constant takes the length's place.
    "dr_grpo": Formula(**_GRPO_CLIP, normalize_by_std=False, loss_agg_mode="seq-mean-token-sum-norm"),
    # arXiv 2503.14476, equations 8 to 12.
    "dapo": Formula(**_DAPO_CLIP),
    # arXiv 2507.18071, equations 5 to 7, section 5.1.
    "gspo": Formula(policy_loss="gspo", clip_ratio_low=3e-4, clip_ratio_high=4e-4, loss_agg_mode="seq-mean-token-mean"),
    # arXiv 2506.13585, equations 4 and 5: no lower bound; the upper one is not in the paper.
    "cispo": Formula(policy_loss="cispo", clip_ratio_low=1.0, clip_ratio_high=0.2),
    # arXiv 2402.14740, equations 6 to 8: whole answers, so their tokens are summed.
    "rloo": Formula(
        advantage="rloo",
        policy_loss="gpg",
        loss_agg_mode="seq-mean-token-sum",
        kl_reward_coef=0.03,
    ),
    # arXiv 2501.03262, equations 5 to 8; the coefficient is OpenRLHF's.
    "reinforce_plus_plus": Formula(**_GRPO_CLIP, advantage="reinforce_plus_plus", kl_reward_coef=0.01),
    # arXiv 1707.06347, equation 7; arXiv 2203.02155, appendix C.4: KL 0.02.
    "ppo": Formula(**_GRPO_CLIP, advantage="gae", gamma=1.0, lam=0.95, kl_reward_coef=0.02),
    # arXiv 2504.20073, section 3.
    "starpo_s": Formula(**_DAPO_CLIP, advantage="gae", gamma=1.0, lam=1.0, entropy_coeff=0.001),
    "sft": Formula(objective="sft"),
    # arXiv 2305.18290, equation 7, appendix B: beta 0.1.
    "dpo": Formula(objective="dpo", beta=0.1),
}
