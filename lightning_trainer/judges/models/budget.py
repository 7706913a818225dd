"""What asking a model may cost: calls, tokens, and money, exceeded at most by an endpoint's misreporting.

A call first reserves the most that it can cost, and is settled at its actual cost. One that the endpoint refuses, or
that does not reach it, costs nothing; for one whose answer does not come in time the reservation stands, since the
endpoint may have charged for it.
"""

from dataclasses import dataclass

from lightning_trainer.config.model_endpoint import BudgetConfig
from lightning_trainer.errors import JudgeError

_CHARS_PER_TOKEN = 3
"""Lower than in most texts, so that reservations are large enough."""
_MORE_BYTES_PER_TOKEN = 2
"""Of those that UTF-8 needs beyond one a character."""
_MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one call."""

    input_tokens: int
    output_tokens: int


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
        """``part_of``: a budget that is charged as well; both limits apply. ``section`` has the limits, and ``instead``
        says what else may be done where one is reached."""
        self.limits = limits or BudgetConfig()
        self._whole = part_of
        self._section, self._instead = section, instead
        self.calls = 0
        self.input_tokens = 0
        self.output_tokens = 0
        self.refusal: str | None = None
        """Why a call was refused; None if none was, or if more is left by now."""

    @property
    def money(self) -> float:
        """Return what the tokens cost so far, in the currency of the configured prices."""
        return self._cost(self.input_tokens, self.output_tokens)

    @property
    def spent(self) -> dict[str, int]:
        """Return ``calls``, ``input_tokens`` and ``output_tokens``."""
        return {"calls": self.calls, "input_tokens": self.input_tokens, "output_tokens": self.output_tokens}

    def reserve(self, input_tokens: int, answer_tokens: int) -> Usage:
        """Reserve the most that a call can cost.

        Raises:
            JudgeError: not enough is left; nothing was reserved.
        """
        most = Usage(input_tokens, answer_tokens)
        tokens = self.input_tokens + self.output_tokens + most.input_tokens + most.output_tokens
        money = self._cost(self.input_tokens + most.input_tokens, self.output_tokens + most.output_tokens)
        for name, needed, limit in (
            ("calls", self.calls + 1, self.limits.calls),
            ("tokens", tokens, self.limits.tokens),
            ("money", money, self.limits.money),
        ):
            if limit is not None and needed > limit:
                self.refusal = (
                    f"its budget is spent: the next call could bring {name} to {needed:g}, and "
                    f"{self._section}.budget.{name} is {limit:g}; raise it{self._instead}"
                )
                raise JudgeError(self.refusal)
        if self._whole is not None:
            self._whole.reserve(input_tokens, answer_tokens)
        self.calls += 1
        self._add(most)
        return most

    def release(self, reserved: Usage) -> None:
        """Release all of a call that was not answered, and with it what was refused for its sake."""
        if self._whole is not None:
            self._whole.release(reserved)
        self.calls -= 1
        self._add(Usage(-reserved.input_tokens, -reserved.output_tokens))
        self.refusal = None

    def settle(self, reserved: Usage, spent: Usage | None) -> None:
        """Release what a call did not cost; None: the endpoint does not report it, and the reservation stands."""
        if self._whole is not None:
            self._whole.settle(reserved, spent)
        if spent is not None:
            self._add(Usage(spent.input_tokens - reserved.input_tokens, spent.output_tokens - reserved.output_tokens))

    def _add(self, usage: Usage) -> None:
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens

    def _cost(self, input_tokens: int, output_tokens: int) -> float:
        prices = (self.limits.price_input or 0.0, self.limits.price_output or 0.0)
        return (input_tokens * prices[0] + output_tokens * prices[1]) / _MILLION


def estimated_tokens(text: str) -> int:
    """Return an estimate of the tokens in a text, rather too high than too low.

    Beyond ASCII a character is often a token of its own, or several: a Chinese one counts as 1.3.
    """
    more_bytes = len(text.encode(errors="surrogatepass")) - len(text)
    return len(text) // _CHARS_PER_TOKEN + more_bytes // _MORE_BYTES_PER_TOKEN + 1
