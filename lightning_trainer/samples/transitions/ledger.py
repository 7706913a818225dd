"""Promise 1, conservation: every sampled token of every call that comes in meets exactly one outcome.

The ledger is told of each call as it arrives and of each outcome as it is decided, by different code; ``balance``
compares the two call by call, and the tokens called trained with the masks of the samples that will be trained.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lightning_trainer.errors import LedgerImbalanceError
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call, LedgerRow, Outcome, Sample

NO_AGENT = "(no agent)"
"""Stands in the agent column for calls whose agent is unknown."""

CallOutcome: TypeAlias = tuple[Outcome, Reason]
"""What became of a call's sampled tokens, and why."""

_NAMED_CALLS = 5


@dataclass(slots=True)
class _Account:
    """One call id: tokens that came in (twice if it was delivered twice), and what became of them."""

    agent: str
    policy: str | None
    policy_version: int | None
    received: int = 0
    settled: int = 0
    trained: int = 0


@dataclass(slots=True)
class _Sum:
    call_outcome: CallOutcome
    tokens: int = 0
    calls: int = 0


class Ledger:
    """Accumulates what became of each call's sampled tokens; not thread-safe, and made for one batch only."""

    def __init__(self) -> None:
        self._accounts: dict[str, _Account] = {}
        self._call_outcomes: dict[str, CallOutcome] = {}
        self._sums: dict[tuple[str, str | None, int | None, Outcome, Reason], _Sum] = {}

    def receive(self, call: Call) -> None:
        """Record that a call came in; a call that is delivered twice is received twice."""
        self._account(call).received += len(call.response_ids)

    def settle(self, call: Call, outcome: Outcome, reason: Reason, tokens: int | None = None) -> None:
        """Record what became of the sampled tokens of one delivery of a call: of all of them, or of ``tokens`` many."""
        account = self._accounts.get(call.call_id) or self._account(call)
        tokens = len(call.response_ids) if tokens is None else tokens
        account.settled += tokens
        if outcome is Outcome.TRAINED:
            account.trained += tokens
        key = (account.agent, account.policy, account.policy_version, outcome, reason)
        known = self._sums.get(key)
        if known is None:
            known = self._sums[key] = _Sum((outcome, reason))
        self._call_outcomes[call.call_id] = known.call_outcome
        known.tokens += tokens
        known.calls += 1

    @property
    def call_outcomes(self) -> Mapping[str, CallOutcome]:
        """By call id; if a call was settled more than once, the last outcome."""
        return self._call_outcomes

    def balance(self, samples: Iterable[Sample] = ()) -> tuple[LedgerRow, ...]:
        """Return the rows once the sums agree.

        Args:
            samples: everything that will be trained.

        Raises:
            LedgerImbalanceError: tokens are missing, counted twice, or trained without being called so; the message
                has the sums by agent and policy version and names the first calls that differ.
        """
        masked_in = _trained_by_call(samples)
        wrong = [
            f"call {call_id}: {account.received} in, {account.settled} accounted for, {account.trained} called "
            f"trained, {masked_in.get(call_id, 0)} in the samples"
            for call_id, account in self._accounts.items()
            if account.received != account.settled or account.trained != masked_in.get(call_id, 0)
        ]
        wrong += [
            f"call {call_id}: never came in, {tokens} in the samples"
            for call_id, tokens in masked_in.items()
            if call_id not in self._accounts
        ]
        if wrong:
            more = f" and {len(wrong) - _NAMED_CALLS} more" if len(wrong) > _NAMED_CALLS else ""
            raise LedgerImbalanceError(
                f"the ledger does not balance, so the batch is refused. {self._described()}. "
                f"{'; '.join(sorted(wrong)[:_NAMED_CALLS])}{more}. This is a defect: please report it with the trace"
            )
        return tuple(
            LedgerRow(agent, policy, version, outcome, reason.value, known.tokens, known.calls)
            for (agent, policy, version, outcome, reason), known in sorted(
                self._sums.items(),
                key=lambda row: (row[0][0], row[0][1] or "", -1 if row[0][2] is None else row[0][2], *row[0][3:]),
            )
        )

    def _account(self, call: Call) -> _Account:
        account = self._accounts.get(call.call_id)
        if account is None:
            account = _Account(call.agent or NO_AGENT, call.policy, call.policy_version)
            self._accounts[call.call_id] = account
        return account

    def _described(self) -> str:
        received: Counter[tuple[str, int | None]] = Counter()
        outcomes: dict[tuple[str, int | None], Counter[Outcome]] = {}
        for account in self._accounts.values():
            received[account.agent, account.policy_version] += account.received
        for (agent, _, version, outcome, _), known in self._sums.items():
            outcomes.setdefault((agent, version), Counter())[outcome] += known.tokens
        return "; ".join(
            f"agent {agent} version {version}: {tokens} sampled tokens in, "
            + ", ".join(f"{outcomes.get((agent, version), Counter())[outcome]} {outcome}" for outcome in Outcome)
            for (agent, version), tokens in received.items()
        )


def _trained_by_call(samples: Iterable[Sample]) -> dict[str, int]:
    trained: dict[str, int] = {}
    for sample in samples:
        named = 0
        for segment in sample.segments:
            tokens = sum(sample.loss_mask[segment.start : segment.end])
            trained[segment.transition_id] = trained.get(segment.transition_id, 0) + tokens
            named += tokens
        if sum(sample.loss_mask) != named:
            raise LedgerImbalanceError(
                f"sample {sample.sample_id}: its mask trains {sum(sample.loss_mask)} tokens, its segments name {named}"
            )
    return trained
