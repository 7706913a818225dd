"""Credit schemes by the names that the configuration uses."""

from collections.abc import Callable, Mapping

from lightning_trainer.config import CreditConfig
from lightning_trainer.credit.discounted import DiscountedReturn
from lightning_trainer.credit.scheme import CreditScheme
from lightning_trainer.credit.terminal import TerminalReward
from lightning_trainer.errors import CreditAssignmentError

SCHEMES: Mapping[str, Callable[[CreditConfig], CreditScheme]] = {
    "terminal": lambda config: TerminalReward(),
    "discounted": lambda config: DiscountedReturn(gamma=config.gamma),
}


def credit_scheme(config: CreditConfig) -> CreditScheme:
    """Return the configured scheme.

    Raises:
        CreditAssignmentError: there is none of this name; the message lists those that there are.
    """
    if config.scheme not in SCHEMES:
        raise CreditAssignmentError(f"credit scheme {config.scheme!r} is unknown; there are {', '.join(SCHEMES)}")
    return SCHEMES[config.scheme](config)
