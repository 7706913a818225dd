"""``[policy.credit]``: one section per credit scheme, with the range of each setting; ``credit/`` has the formulas."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from lightning_trainer.config.sections import Section

Discount: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Weight: TypeAlias = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class CreditSettings(Section):
    """Base of the schemes' sections."""

    needs_values: ClassVar[bool] = False
    """Whether it needs a critic's values: such a scheme gives rewards while a step is built, and the trainer turns them
    into advantages."""
    gives_advantages: ClassVar[bool] = False
    """Whether it gives advantages, with the baseline already subtracted: none of verl's estimators runs on them."""
    needs_causes: ClassVar[bool] = False
    """Whether it needs ``Transition.causes``."""
    one_team: ClassVar[bool] = False
    """Whether an agent's credit depends on which other agents took part, because it gets a part of the outcome, or the
    others' own rewards too: only attempts by the same agents are compared."""

    @property
    def unused(self) -> tuple[str, ...]:
        """The rewards that the scheme does not use: those of ``calls``, ``agents`` or ``attempts``."""
        return ()


class TerminalCredit(CreditSettings):
    """Every call gets the reward of its attempt."""

    scheme: Literal["terminal"] = "terminal"

    @property
    def unused(self) -> tuple[str, ...]:
        return ("calls",)


class EqualSharesCredit(CreditSettings):
    """Every call gets an equal part of the reward of its attempt."""

    scheme: Literal["equal_shares"] = "equal_shares"
    one_team: ClassVar[bool] = True

    @property
    def unused(self) -> tuple[str, ...]:
        return ("calls",)


class StepsCredit(CreditSettings):
    """Every call gets the reward that it was given itself."""

    scheme: Literal["steps"] = "steps"

    @property
    def unused(self) -> tuple[str, ...]:
        return ("agents", "attempts")


class DiscountedCredit(CreditSettings):
    """Every call gets the discounted return of what followed it."""

    scheme: Literal["discounted"] = "discounted"
    gamma: Discount = 1.0
    """Discount per call."""


class AgentReturnCredit(CreditSettings):
    """Every call gets the return-to-go of what its own agent was given."""

    scheme: Literal["agent_return"] = "agent_return"
    gamma: Discount = 1.0
    """Discount per call of the agent."""
    team_weight: float = Field(default=0.0, ge=0, le=1e6)
    """How much the reward of the whole attempt counts next to the agent's own."""

    @property
    def unused(self) -> tuple[str, ...]:
        return () if self.team_weight else ("attempts",)


class HierarchicalCredit(CreditSettings):
    """The reward of the attempt is divided among its agents, and each part among that agent's calls."""

    scheme: Literal["hierarchical"] = "hierarchical"
    one_team: ClassVar[bool] = True
    agent_weights: Mapping[str, Weight] = Field(default_factory=dict)
    """By agent name or pattern (``worker_*``): an agent's own name counts first, then the first pattern that it fits; 1
    for the others."""


class CausalCredit(CreditSettings):
    """Rewards flow back along the span graph, across agents; where branches join, they are divided."""

    scheme: Literal["causal"] = "causal"
    gamma: Discount = 1.0
    """Discount per edge."""
    needs_causes: ClassVar[bool] = True


class MagrpoCredit(CreditSettings):
    """The joint return of all agents, compared by agent and turn (MAGRPO)."""

    scheme: Literal["magrpo"] = "magrpo"
    one_team: ClassVar[bool] = True


class GigpoCredit(CreditSettings):
    """Episode term and step term, the latter among calls made in the same state (GiGPO)."""

    scheme: Literal["gigpo"] = "gigpo"
    omega: float = Field(default=1.0, ge=0, le=1e3)
    """Weight of the step term."""
    gamma: Discount = 0.95
    """Discount per call, of the step term's returns."""
    normalize_by_std: bool = True
    """Divide both terms by the standard deviation of the values compared; False is the paper's F_norm = 1."""
    state: Literal["prompt", "observation"] = "prompt"
    """What two calls in the same state have in common: the whole prompt, or what was new in it. A state that the agent
    names (``lt.state``) takes precedence over both."""
    gives_advantages: ClassVar[bool] = True


class GaeTurnsCredit(CreditSettings):
    """Generalized advantage estimation with a turn as the time step."""

    scheme: Literal["gae_turns"] = "gae_turns"
    gamma: Discount = 1.0
    lam: Discount = 0.95
    needs_values: ClassVar[bool] = True
    gives_advantages: ClassVar[bool] = True


class GaeTokensCredit(CreditSettings):
    """Generalized advantage estimation with a sampled token as the time step."""

    scheme: Literal["gae_tokens"] = "gae_tokens"
    gamma: Discount = 1.0
    lam: Discount = 0.95
    needs_values: ClassVar[bool] = True
    gives_advantages: ClassVar[bool] = True


class GaeBilevelCredit(CreditSettings):
    """Generalized advantage estimation over turns, then over the tokens of each turn."""

    scheme: Literal["gae_bilevel"] = "gae_bilevel"
    gamma_turn: Discount = 0.95
    lam_turn: Discount = 1.0
    gamma_token: Discount = 1.0
    lam_token: Discount = 1.0
    needs_values: ClassVar[bool] = True
    gives_advantages: ClassVar[bool] = True


CreditConfig: TypeAlias = Annotated[
    TerminalCredit
    | EqualSharesCredit
    | StepsCredit
    | DiscountedCredit
    | AgentReturnCredit
    | HierarchicalCredit
    | CausalCredit
    | MagrpoCredit
    | GigpoCredit
    | GaeTurnsCredit
    | GaeTokensCredit
    | GaeBilevelCredit,
    Field(discriminator="scheme"),
]

CREDIT_SETTINGS: Mapping[str, type[CreditSettings]] = {
    settings.model_fields["scheme"].default: settings for settings in CreditSettings.__subclasses__()
}
"""By the name of the scheme."""


def named_scheme(value: Any) -> Any:
    """Fill in the default scheme, and refuse an unknown one in a sentence.

    Args:
        value: the value of ``credit``, before validation.

    Raises:
        ValueError: the name is unknown; the known ones are listed.
    """
    if isinstance(value, CreditSettings):
        name = getattr(value, "scheme", None)
    elif isinstance(value, Mapping):
        value = {"scheme": "terminal", **value}
        name = value["scheme"]
    else:
        return value
    if not isinstance(name, str) or name not in CREDIT_SETTINGS:
        raise ValueError(f"credit scheme {name!r} is unknown; there are {', '.join(CREDIT_SETTINGS)}")
    return value
