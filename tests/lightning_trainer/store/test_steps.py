"""Steps, their batches and their ledger: written once, in one transaction, and read back to the last bit."""

import asyncio
import json
import math
import zlib
from dataclasses import replace

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.errors import StoreError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.store import StepState, Store, batch_codec
from lightning_trainer.store.batch_codec import decode_batch, decode_report, encode_batch, encode_report
from lightning_trainer.store.tables.steps import select_batches
from lightning_trainer.types import Gap, LedgerRow, Media, Outcome, Sample, Segment, StepReport, TrainingBatch


def _sample(logprob: float = -0.25, credit: float | None = 1.0) -> Sample:
    return Sample(
        sample_id="s",
        policy="p",
        agent="solver",
        group_id="g",
        attempt_id="a",
        token_ids=(5, 6, 7),
        loss_mask=(0, 1, 1),
        behavior_logprobs=(0.0, logprob, -1.5),
        segments=(Segment(1, 3, "c/0", 0, credit, "a"),),
    )


def _batch(step: int, *samples: Sample) -> TrainingBatch:
    return TrainingBatch("p", step, samples or (_sample(),))


_LEDGER = [
    LedgerRow("solver", "p", 0, Outcome.TRAINED, "trained", 2, 1),
    LedgerRow("other", None, None, Outcome.DROPPED, "not selected", 9, 3),
]
_REPORT = StepReport(
    step=1,
    metrics={"actor/grad_norm": 1.25, "actor/kl": math.inf},
    advantages={"s": (0.0, 0.5, 0.5)},
    tokens_trained=2,
    tokens_computed=3,
    tokens_sequential=3,
    seconds={"update": 0.5},
)


async def _assign(store: Store, step: int, attempt_ids: list[str], policy: str = "p", **fields) -> None:
    batch = TrainingBatch(policy, step, (_sample(),))
    await store.assign(batch, policy=policy, step=step, attempt_ids=attempt_ids, ledger=_LEDGER, **fields)


async def test_a_step_is_recorded_with_everything_it_needs(store: Store, make_root) -> None:
    await store.append([make_root(1, "a"), make_root(2, "b"), make_root(3, "c")])
    await _assign(store, 1, ["b", "a"], metrics={"reward/mean": 0.5})
    assert [attempt.attempt_id for attempt in await store.ended_attempts()] == ["c"]
    (record,) = await store.steps("p")
    assert (record.step, record.state, record.attempt_ids, record.report, record.metrics) == (
        1,
        StepState.ASSIGNED,
        ("b", "a"),
        None,
        {"reward/mean": 0.5},
    )
    assert await store.batch("p", 1) == _batch(1)
    assert await store.ledger("p") == await store.ledger("p", 1) == _LEDGER
    await store.finish_step("p", _REPORT)
    (record,) = await store.steps("p", advantages=True)
    assert (record.state, record.report) == (StepState.TRAINED, _REPORT)


async def test_an_attempt_is_never_in_two_steps(store: Store, make_root) -> None:
    await store.append([make_root(1, "a"), make_root(2, "b")])
    await _assign(store, 1, ["a"])
    with pytest.raises(StoreError, match="attempt 'a' already belongs to step 1; nothing is trained twice"):
        await _assign(store, 2, ["b", "a"])
    assert [record.step for record in await store.steps("p")] == [1]
    assert await store.ledger("p") == _LEDGER
    assert [attempt.attempt_id for attempt in await store.ended_attempts()] == ["b"]


async def test_racing_assignments_of_one_attempt_have_one_winner(store: Store, make_root) -> None:
    await store.append([make_root(1, "a")])
    outcomes = await asyncio.gather(*(_assign(store, step, ["a"]) for step in range(1, 9)), return_exceptions=True)
    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, StoreError) for outcome in outcomes) == 7
    assert len(await store.steps("p")) == 1


async def test_each_policy_consumes_an_attempt_for_itself(store: Store, make_root) -> None:
    await store.append([make_root(1, "a")])
    await _assign(store, 1, ["a"])
    assert [a.attempt_id for a in await store.ended_attempts(policy="q")] == ["a"]
    await _assign(store, 1, ["a"], policy="q")
    assert await store.ended_attempts(policy="q") == []


@pytest.mark.parametrize(
    ("step", "attempt_ids", "sentence"),
    [
        (1, ["b"], "step 1 of policy 'p' is already recorded"),
        (2, ["z"], "attempt 'z' is not in the store"),
        (2, ["b", "b"], "attempt 'b' already belongs to step 2"),
    ],
)
async def test_a_wrong_assignment_writes_nothing(store, make_root, step, attempt_ids, sentence) -> None:
    await store.append([make_root(1, "a"), make_root(2, "b")])
    await _assign(store, 1, ["a"])
    with pytest.raises(StoreError, match=sentence):
        await _assign(store, step, attempt_ids)
    assert len(await store.steps("p")) == 1
    assert len(await store.ledger("p")) == len(_LEDGER)
    assert [a.attempt_id for a in await store.ended_attempts()] == ["b"]


async def test_a_batch_of_another_step_or_none_without_skipping_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match="the batch is step 1 of policy 'p', not 2"):
        await store.assign(_batch(1), policy="p", step=2, attempt_ids=[], ledger=[])
    with pytest.raises(StoreError, match="has no batch; record it as skipped"):
        await store.assign(None, policy="p", step=2, attempt_ids=[], ledger=[])


async def test_a_skipped_step_consumes_its_attempts_and_has_no_batch(store: Store, make_root) -> None:
    await store.append([make_root(1, "a"), make_root(2, "b"), make_root(3, "c")])
    await store.assign(None, policy="p", step=1, attempt_ids=["a"], ledger=_LEDGER, state="skipped")
    await _assign(store, 2, ["b"])
    await _assign(store, 3, ["c"])
    assert await store.ended_attempts() == []
    for after, left in ((0, [2, 3]), (2, [3])):
        batches = await store.scan(lambda connection, after=after: select_batches(connection, "p", after=after))
        assert [batch.step for batch in batches] == left
    with pytest.raises(StoreError, match="step 1 of policy 'p' has no batch"):
        await store.batch("p", 1)
    with pytest.raises(StoreError, match="is skipped; it cannot become trained"):
        await store.finish_step("p", _REPORT)


async def test_a_step_may_be_trained_again_after_a_crash_but_not_unassigned(store: Store, make_root) -> None:
    await store.append([make_root(1, "a")])
    with pytest.raises(StoreError, match="step 1 of policy 'p' was never assigned"):
        await store.finish_step("p", _REPORT)
    await _assign(store, 1, ["a"])
    await store.finish_step("p", _REPORT, "trained")
    await store.finish_step("p", _REPORT, "trained")
    with pytest.raises(StoreError, match="is trained; it cannot become assigned"):
        await store.finish_step("p", _REPORT, "assigned")


_finite = st.floats(allow_nan=False, allow_infinity=False)


@given(_finite, st.none() | _finite)
def test_a_batch_comes_back_to_the_last_bit(logprob: float, credit: float | None) -> None:
    batch = _batch(1, _sample(logprob, credit))
    assert decode_batch(encode_batch(batch)) == batch


def test_a_stored_batch_names_its_fields_as_ever() -> None:
    (sample,) = json.loads(zlib.decompress(encode_batch(_batch(1, _sample(-0.5, 1.0)))))["batch"]["samples"]
    assert sample["behaviour_logprobs"] == [0.0, -0.5, -1.5]
    assert "behavior_logprobs" not in sample


async def test_steps_are_read_in_pages_and_advantages_only_where_they_are_asked_for(
    store: Store, make_root, monkeypatch
) -> None:
    await store.append([make_root(step, f"a{step}") for step in range(1, 31)])
    for step in range(1, 31):
        await _assign(store, step, [f"a{step}"])
        await store.finish_step("p", replace(_REPORT, step=step))
    read: list[str] = []
    unpack = batch_codec._read

    def counted(text: bytes) -> dict:
        document = unpack(text)
        read.extend(document.keys() - {"format"})
        return document

    monkeypatch.setattr(batch_codec, "_read", counted)
    page = await store.steps("p", before=21, newest=5)
    assert [(record.step, record.attempt_ids) for record in page] == [(n, (f"a{n}",)) for n in range(16, 21)]
    assert all(record.report == replace(_REPORT, step=record.step, advantages={}) for record in page)
    assert read == ["report"] * 5
    assert await store.step_states("p") == dict.fromkeys(range(1, 31), StepState.TRAINED)
    assert len(read) == 5
    assert (await store.step("p", 7)).report == replace(_REPORT, step=7)
    assert read[5:] == ["report", "advantages"]
    assert [row.tokens for row in await store.ledger("p", since=29)] == [2, 9] * 2


def test_a_report_that_was_written_in_one_part_is_still_read() -> None:
    whole = {
        "step": 1,
        "metrics": {"actor/grad_norm": 1.25, "actor/kl": "inf"},
        "advantages": {"s": [0.0, 0.5, 0.5]},
        "tokens_trained": 2,
        "tokens_computed": 3,
        "tokens_sequential": 3,
        "seconds": {"update": 0.5},
    }
    stored = zlib.compress(json.dumps({"format": 1, "report": whole}).encode())
    assert decode_report(stored) == _REPORT
    assert decode_report(stored, advantages=False) == replace(_REPORT, advantages={})


def test_a_report_keeps_metrics_that_are_not_finite() -> None:
    report = replace(_REPORT, settings={"optimizer.lr": "1e-05"})
    assert decode_report(encode_report(report)) == report


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_batch_that_would_spoil_the_weights_is_refused(bad: float) -> None:
    gap = replace(_sample(), gaps=(Gap("c/2", bad, "c/1"),))
    for sample in (_sample(bad), _sample(-1.0, bad), replace(_sample(), baseline=bad), gap):
        with pytest.raises(StoreError, match="has a log-probability, credit, baseline or logit bias that is NaN"):
            encode_batch(_batch(1, sample))


def test_a_batch_that_was_stored_before_gaps_and_orders_is_read() -> None:
    document = orjson.loads(zlib.decompress(encode_batch(_batch(1))))
    for sample in document["batch"]["samples"]:
        del sample["gaps"]
        for segment in sample["segments"]:
            del segment["order"]
    assert decode_batch(zlib.compress(orjson.dumps(document))) == _batch(1)


def test_a_batch_keeps_pictures_the_baseline_and_whose_a_segment_is() -> None:
    segments = (Segment(1, 2, "c/0", 0, 1.0, "a", agent="planner", attempt_id="b"), Segment(2, 3, "c/1", 0, 1.0, "a"))
    sample = replace(_sample(), segments=segments, media=(Media("image", "sha256:00", "image/png"),))
    sample = replace(sample, baseline=0.1, gaps=(Gap("c/2", 0.5, "c/1", attempt_id="b"),))
    assert decode_batch(encode_batch(_batch(1, sample))) == _batch(1, sample)


def test_a_batch_keeps_what_its_tokens_were_sampled_from() -> None:
    shaping = Shaping(((5, -1.5), (7, 0.1)), 0.5, -0.25, 1.1)
    support = support_of(50_000, [range(3, 40_000, 2), [7]])
    experts = RoutedExperts(0, 2, 2, 2, bytes(range(16)))
    segment = replace(_sample().segments[0], shaping=shaping, support=support, routed_experts=experts)
    sample = replace(_sample(), segments=(segment,), loss_mask=(0, 1, 0), behavior_logprobs=(0.0, -0.5, 0.0))
    assert decode_batch(encode_batch(_batch(1, sample))) == _batch(1, sample)
    spoilt = replace(segment, shaping=replace(shaping, logit_bias=((5, math.nan),)))
    with pytest.raises(StoreError, match="logit bias that is NaN"):
        encode_batch(_batch(1, replace(sample, segments=(spoilt,))))


def test_a_batch_from_before_that_was_kept_is_read() -> None:
    document = orjson.loads(zlib.decompress(encode_batch(_batch(1))))
    for segment in document["batch"]["samples"][0]["segments"]:
        del segment["shaping"], segment["support"], segment["routed_experts"]
    assert decode_batch(zlib.compress(orjson.dumps(document))) == _batch(1)
