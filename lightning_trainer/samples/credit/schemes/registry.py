"""Credit schemes by the names that the configuration uses; the formula of each is in its file."""

from collections.abc import Callable, Mapping
from typing import Any

from lightning_trainer.config.policies.credit import CREDIT_SETTINGS, CreditSettings, named_scheme
from lightning_trainer.errors import CreditAssignmentError
from lightning_trainer.samples.credit.schemes.agent_return import AgentReturn
from lightning_trainer.samples.credit.schemes.causal import Causal
from lightning_trainer.samples.credit.schemes.critic.turn_rewards import TurnRewards
from lightning_trainer.samples.credit.schemes.discounted import DiscountedReturn
from lightning_trainer.samples.credit.schemes.equal_shares import EqualShares
from lightning_trainer.samples.credit.schemes.gigpo import Gigpo
from lightning_trainer.samples.credit.schemes.hierarchical import Hierarchical
from lightning_trainer.samples.credit.schemes.magrpo import JointReturn
from lightning_trainer.samples.credit.schemes.scheme import CreditScheme
from lightning_trainer.samples.credit.schemes.steps import StepRewards
from lightning_trainer.samples.credit.schemes.terminal import TerminalReward

SCHEMES: Mapping[str, Callable[..., CreditScheme]] = {
    "terminal": TerminalReward,
    "equal_shares": EqualShares,
    "steps": StepRewards,
    "discounted": DiscountedReturn,
    "agent_return": AgentReturn,
    "hierarchical": Hierarchical,
    "causal": Causal,
    "magrpo": JointReturn,
    "gigpo": Gigpo,
}
"""Each takes its settings by name. Schemes that need a critic are not here but ``TurnRewards``: the trainer, which has
the values, runs their formulas."""


def credit_scheme(settings: CreditSettings | Mapping[str, Any]) -> CreditScheme:
    """Return the configured scheme.

    Raises:
        CreditAssignmentError: no scheme has this name; the message lists those that exist.
    """
    try:
        named_scheme(settings)
    except ValueError as error:
        raise CreditAssignmentError(str(error)) from None
    values = settings.model_dump() if isinstance(settings, CreditSettings) else {"scheme": "terminal", **settings}
    name = values.pop("scheme")
    return TurnRewards() if CREDIT_SETTINGS[name].needs_values else SCHEMES[name](**values)
