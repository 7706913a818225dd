"""The batch of a step that trains on a file: its rows, as samples, and the account of their tokens.

Rows are shuffled again for every pass over them, by the seed and the number of the pass: a step's rows depend only on
the step's number, and no row occurs twice in a step.
"""

import random
from collections.abc import Sequence

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.demonstrations import Demonstration
from lightning_trainer.samples import problems
from lightning_trainer.samples.batches import Build
from lightning_trainer.samples.best_of_n import AVOIDED, IMITATED
from lightning_trainer.samples.transitions.ledger import Ledger
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call, Fidelity, Outcome, Sample, Segment, TrainingBatch

_SIDES = (IMITATED, AVOIDED)


def rows_of_step(
    rows: Sequence[Demonstration], number: int, batch_size: int, seed: int
) -> tuple[list[Demonstration], int]:
    """Return the rows of a stage's step ``number``, and which pass over the data they are from; both count from 0."""
    per_pass = -(-len(rows) // batch_size)
    epoch, batch = divmod(number, per_pass)
    order = random.Random(f"{seed} {epoch}").sample(range(len(rows)), len(rows))
    return [rows[index] for index in order[batch * batch_size : (batch + 1) * batch_size]], epoch


def build_demonstrations(rows: Sequence[Demonstration], policy: PolicyConfig, step: int) -> Build:
    """Build a batch of rows.

    Args:
        policy: the policy with the settings of the step.

    Raises:
        LedgerImbalanceError: the result does not account for every token of the answers exactly once (a defect).
    """
    ledger, limit = Ledger(), Limit(policy.max_sample_tokens, policy.over_length)
    samples: list[Sample] = []
    for row in rows:
        calls = [_call(row, number) for number in range(len(row.answers))]
        for call in calls:
            ledger.receive(call)
        kept = [limit.trainable(call) for call in calls]
        for call, tokens, credit in zip(calls, kept, _SIDES, strict=False):  # a demonstration has one side
            sampled = len(call.response_ids)
            if not all(kept):
                # If one of its sides is dropped, there is no pair.
                ledger.settle(call, Outcome.DROPPED, Reason.NO_PAIR if tokens else Reason.OVER_LENGTH)
                continue
            if tokens < sampled:
                ledger.settle(call, Outcome.DROPPED, Reason.CUT, sampled - tokens)
            imitated_as = Reason.PREFERENCE if len(calls) > 1 else Reason.DEMONSTRATED
            ledger.settle(call, Outcome.TRAINED, imitated_as, tokens)
            samples.append(_sample(row, call, tokens, credit, policy.name))
    accounts = ledger.balance(samples)
    return Build(
        batch=TrainingBatch(policy=policy.name, step=step, samples=tuple(samples)) if samples else None,
        ledger=accounts,
        groups=(),
        problems=tuple(problems.demonstrations_too_long(accounts, policy)),
        call_outcomes=ledger.call_outcomes,
    )


def _call(row: Demonstration, number: int) -> Call:
    """Return the answer as a call, which the ledger can account for."""
    return Call(
        call_id=f"{row.name}/{number}",
        trace_id="",
        span_id="",
        parent_span_id=None,
        response_id=None,
        agent=row.agent or None,
        rollout_id=None,
        attempt_id=None,
        policy=None,
        policy_version=None,
        prompt_ids=tuple(row.prompt_ids),
        response_ids=tuple(row.answers[number]),
        behavior_logprobs=None,
        finish_reason=None,
        complete=True,
        start_ns=0,
        end_ns=0,
        fidelity=Fidelity.EXACT,
    )


def _sample(row: Demonstration, call: Call, tokens: int, credit: float, policy: str) -> Sample:
    start = len(call.prompt_ids)
    ids = (*call.prompt_ids, *call.response_ids[:tokens])
    return Sample(
        sample_id=call.call_id,
        policy=policy,
        agent=row.agent,
        group_id=row.name,
        attempt_id=call.call_id,
        token_ids=ids,
        loss_mask=(0,) * start + (1,) * tokens,
        behavior_logprobs=(0.0,) * len(ids),  # no behavior policy: neither objective reads them
        segments=(Segment(start, len(ids), call.call_id, 0, credit, call.call_id),),
    )
