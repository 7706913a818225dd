import pytest

from lightning_trainer.errors import LedgerImbalanceError
from lightning_trainer.samples.transitions.ledger import NO_AGENT, Ledger
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import LedgerRow, Outcome, Sample, Segment


def _sample(call_id="s/0", start=2, end=4):
    mask = tuple(int(start <= i < end) for i in range(end))
    segments = (Segment(start, end, call_id, 0, 1.0, "row"),)
    return Sample("sample", "math", "solver", "g", "a1", tuple(range(end)), mask, (0.0,) * end, segments)


def test_rows_sum_tokens_and_calls_by_agent_version_and_reason(make_call):
    ledger = Ledger()
    calls = [make_call("s"), make_call("t", policy_version=1), make_call("u", (1,), (2, 3, 4), agent=None)]
    for call in [*calls, calls[0]]:
        ledger.receive(call)
    ledger.settle(calls[0], Outcome.TRAINED, Reason.SAMPLED)
    ledger.settle(calls[0], Outcome.DEDUPLICATED, Reason.DELIVERED_TWICE)
    ledger.settle(calls[1], Outcome.DROPPED, Reason.NO_REWARD)
    ledger.settle(calls[2], Outcome.DROPPED, Reason.NO_AGENT)
    assert ledger.balance([_sample()]) == (
        LedgerRow(NO_AGENT, "math", 0, Outcome.DROPPED, "no_agent", 3, 1),
        LedgerRow("solver", "math", 0, Outcome.DEDUPLICATED, "delivered_twice", 2, 1),
        LedgerRow("solver", "math", 0, Outcome.TRAINED, "sampled", 2, 1),
        LedgerRow("solver", "math", 1, Outcome.DROPPED, "no_reward", 2, 1),
    )


def test_a_forgotten_call_is_refused_with_the_numbers(make_call):
    ledger = Ledger()
    ledger.receive(make_call("s"))
    with pytest.raises(LedgerImbalanceError, match=r"agent solver version 0: 2 sampled tokens in, 0 trained.*call s/0"):
        ledger.balance()


def test_errors_that_cancel_out_in_the_sums_are_still_refused(make_call):
    ledger = Ledger()
    first, second = make_call("s"), make_call("t")
    ledger.receive(first)
    ledger.receive(second)
    ledger.settle(first, Outcome.DROPPED, Reason.NO_REWARD)
    ledger.settle(first, Outcome.DROPPED, Reason.NO_REWARD)
    with pytest.raises(LedgerImbalanceError, match="call t/0: 2 in, 0 accounted for"):
        ledger.balance()


@pytest.mark.parametrize("samples", [[], [_sample(end=3)], [_sample(), _sample()], [_sample(), _sample("ghost/0")]])
def test_samples_that_train_other_tokens_than_the_ledger_says_are_refused(make_call, samples):
    ledger = Ledger()
    ledger.receive(make_call("s"))
    ledger.settle(make_call("s"), Outcome.TRAINED, Reason.SAMPLED)
    with pytest.raises(LedgerImbalanceError):
        ledger.balance(samples)


def test_an_empty_ledger_balances():
    assert Ledger().balance() == ()
