"""What asking a model may cost: calls, tokens, and money, which only an endpoint's misreporting can exceed.

A call first reserves the most that it can cost, and is settled at its actual cost; a call that the rest of the budget
does not cover waits for the calls under way. A call that the endpoint refuses, or that does not reach it, costs
nothing; if an answer does not come in time, the reservation stands, because the endpoint may have charged for the call.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from lightning_trainer.config.model_endpoint import BudgetConfig
from lightning_trainer.errors import JudgeError

_CHARS_PER_TOKEN = 3
"""Lower than in most texts, so that reservations are large enough."""
_MORE_BYTES_PER_TOKEN = 2
"""For the bytes that UTF-8 needs beyond one per character."""
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call."""

    input_tokens: int
    output_tokens: int


@dataclass(slots=True)
class Charge:
    """What a call costs, as far as it is known."""

    usage: Usage | None
    """What was reserved, until the caller sets what was used. None: the call cost nothing, and does not count."""


class Budget:
    """The budget of one step, one canary, one run by hand, or one prompt; its attributes hold what is spent."""

    def __init__(
        self,
        limits: BudgetConfig | None = None,
        *,
        part_of: "Budget | None" = None,
        section: str = "judge",
        instead: str = ", or judge the rest later with `lightning-trainer judge`",
    ) -> None:
        """``part_of``: a budget that is charged as well; both limits apply. ``section`` names the section with the
        limits, and ``instead`` says what else can be done when one is reached."""
        self.limits = limits or BudgetConfig()
        self._whole = part_of
        self._section, self._instead = section, instead
        self.calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.refusal: str | None = None
        """Why a call was refused; None if none was."""
        self._under_way = 0
        """Number of calls whose cost may turn out to be less than is reserved."""
        self._ended = asyncio.Event()
        """Set when the next of these calls ends, and then replaced by another event."""

    @property
    def money(self) -> float:
        """Return what the tokens cost so far, in the currency of the configured prices."""
        return self._cost(self.input_tokens, self.output_tokens)

    @property
    def spent(self) -> dict[str, int]:
        """Return ``calls``, ``input_tokens`` and ``output_tokens``."""
        return {"calls": self.calls, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens}

    @asynccontextmanager
    async def reserved(self, input_tokens: int, answer_tokens: int) -> AsyncIterator[Charge]:
        """Charge the most that a call can cost while it is under way, and its actual cost when it has ended.

        If too little is left, this waits for calls that are under way, most of which cost less than is reserved.

        Raises:
            JudgeError: not enough is left, and no call is under way.
        """
        most = Usage(input_tokens, answer_tokens)
        budgets: list[Budget] = [self]
        while (whole := budgets[-1]._whole) is not None:
            budgets.append(whole)
        while (exceeded := next((one for one in budgets if one._exceeded(most) is not None), None)) is not None:
            if not exceeded._under_way:
                exceeded.refusal = exceeded._exceeded(most)
                raise JudgeError(exceeded.refusal)
            await exceeded._ended.wait()
        for budget in budgets:
            budget._under_way += 1
            budget._add(1, most)
        charge = Charge(most)
        try:
            yield charge
        finally:
            for budget in budgets:
                budget._under_way -= 1
                budget._add(-1, most)
                if charge.usage is not None:
                    budget._add(1, charge.usage)
                budget._ended.set()
                budget._ended = asyncio.Event()

    def _exceeded(self, most: Usage) -> str | None:
        """Return why a call that may cost this much would exceed a limit; None if it would not."""
        tokens = self.input_tokens + self.output_tokens + most.input_tokens + most.output_tokens
        money = self._cost(self.input_tokens + most.input_tokens, self.output_tokens + most.output_tokens)
        for name, needed, limit in (
            ("calls", self.calls + 1, self.limits.calls),
            ("tokens", tokens, self.limits.tokens),
            ("money", money, self.limits.money),
        ):
            if limit is not None and needed > limit:
                return (
                    f"its budget is spent: the next call could bring {name} to {needed:g}, and "
                    f"{self._section}.budget.{name} is {limit:g}; raise it{self._instead}"
                )
        return None

    def _add(self, sign: int, usage: Usage) -> None:
        self.calls += sign
        self.input_tokens += sign * usage.input_tokens
        self.output_tokens += sign * usage.output_tokens

    def _cost(self, input_tokens: int, output_tokens: int) -> float:
        prices = (self.limits.price_input or 0.0, self.limits.price_output or 0.0)
        return (input_tokens * prices[0] + output_tokens * prices[1]) / _MILLION


def estimated_tokens(text: str) -> int:
    """Return an estimate of the tokens in a text, rather too high than too low.

    Beyond ASCII a character is often a token of its own, or several: a Chinese one counts as 1.3.
    """
    more_bytes = len(text.encode(errors="surrogatepass")) - len(text)
    return len(text) // _CHARS_PER_TOKEN + more_bytes // _MORE_BYTES_PER_TOKEN + 1
