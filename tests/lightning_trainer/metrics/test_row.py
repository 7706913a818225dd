"""A row holds what was measured of a step, and nothing for what was not."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from lightning_trainer.metrics.row import call_metrics, step_metrics
from lightning_trainer.metrics.sampling import sampling_metrics
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.store.records import StepRecord, StepState
from lightning_trainer.types import (
    LedgerRow,
    Outcome,
    PolicyVersion,
    Sample,
    Segment,
    StepReport,
    TrainingBatch,
    VersionState,
)


def _ledger(outcome: Outcome, reason: str, tokens: int) -> LedgerRow:
    return LedgerRow("solver", "p", 0, outcome, reason, tokens, 1)


def test_a_trained_steps_row_has_report_ledger_and_publication():
    report = StepReport(3, {"actor/ppo_kl": 0.01, "grad_norm": 1.5}, {}, 10, 30, 80, {"train": 2.0})
    record = StepRecord(3, StepState.TRAINED, ("a",), report, {"reward/mean": 0.5})
    version = PolicyVersion("p", 3, 3, VersionState.LIVE, 0, probe_max_abs=1e-4, publish_s=0.4)
    ledger = [_ledger(Outcome.TRAINED, "sampled", 10), _ledger(Outcome.DROPPED, "no_reward", 4)]

    row = step_metrics("p", record, ledger, version)

    assert row.step == 3
    assert row.values == {
        "actor/ppo_kl": 0.01,
        "grad_norm": 1.5,
        "ledger/deduplicated": 0.0,
        "ledger/dropped": 4.0,
        "ledger/dropped/no_reward": 4.0,
        "ledger/masked": 0.0,
        "ledger/trained": 10.0,
        "probe/max_abs": 1e-4,
        "reward/mean": 0.5,
        "seconds/publish": 0.4,
        "seconds/train": 2.0,
        "tokens/computed": 30.0,
        "tokens/sequential": 80.0,
        "tokens/trained": 10.0,
    }


def test_a_skipped_steps_row_has_no_figures_of_an_update():
    row = step_metrics("p", StepRecord(4, StepState.SKIPPED, (), None, {"groups/total": 2.0}), [], None)
    assert not any(name.startswith(("tokens/", "seconds/", "actor/", "probe/")) for name in row.values)
    assert row.values["groups/total"] == 2.0


def _sample(name: str, logprobs: list[float], versions: Sequence[int | None]) -> Sample:
    """One sampled token a segment, each of a version of its own."""
    count = len(logprobs)
    return Sample(
        sample_id=name,
        policy="p",
        agent="solver",
        group_id="g",
        attempt_id=name,
        token_ids=tuple(range(count + 1)),
        loss_mask=(0,) + (1,) * count,
        behavior_logprobs=(0.0, *logprobs),
        segments=tuple(Segment(i + 1, i + 2, f"{name}/{i}", version, 1.0, name) for i, version in enumerate(versions)),
    )


def test_entropy_and_staleness_are_means_over_sampled_tokens():
    """Versions 0, 1 and 4 were published (steps 2 and 3 trained nothing); step 5 goes on from 4."""
    batch = TrainingBatch("p", 5, (_sample("a", [-1.0, -2.0], [4, 1]), _sample("b", [-3.0, -4.0], [0, 4])))
    metrics = sampling_metrics(batch, versions=[0, 1, 4])
    assert metrics["entropy/sampled"] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert metrics["staleness/mean"] == pytest.approx((0 + 1 + 2 + 0) / 4)
    assert metrics["staleness/max"] == 2.0


def test_what_was_rolled_back_is_older_than_what_replaced_it():
    """Of 0 to 4, 3 and 4 were rolled back: 2 was published again, then 5; 6 came of it and was held back."""
    batch = TrainingBatch("p", 7, (_sample("a", [-1.0] * 5, [4, 2, 5, 6, 1]),))
    metrics = sampling_metrics(batch, versions=[0, 1, 2, 5], path=(0, 1, 2, 5, 6))
    assert metrics["staleness/mean"] == pytest.approx((2 + 1 + 0 + 0 + 2) / 5)


def test_tokens_of_an_unknown_version_have_no_age():
    batch = TrainingBatch("p", 5, (_sample("a", [-1.0, -2.0], [4, None]), _sample("b", [-3.0, -4.0], [0, None])))
    metrics = sampling_metrics(batch, versions=[0, 1, 4])
    assert metrics["entropy/sampled"] == pytest.approx((1 + 2 + 3 + 4) / 4)
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (1.0, 2.0)  # of the two whose version is known


def test_how_much_choice_there_was():
    """Of 6 sampled tokens one had no choice, one of two, and two were biased; the one without is left out of means."""
    plain, biased = _sample("a", [-1.0, -2.0], [0, 0]), _sample("b", [-3.0, -4.0], [0, 0])
    narrow = Segment(1, 3, "c/0", 0, 1.0, "c", support=support_of(9, [[1], [2, 3]]))
    biases = tuple(replace(segment, shaping=Shaping(((1, 2.0),))) for segment in biased.segments)
    batch = TrainingBatch(
        "p",
        1,
        (
            plain,
            replace(biased, segments=biases),
            replace(_sample("c", [0.0, -5.0], [0, 0]), loss_mask=(0, 0, 1), segments=(narrow,)),
        ),
    )
    metrics = sampling_metrics(batch, versions=[0])
    assert metrics["sampling/no_choice"] == pytest.approx(1 / 6)
    assert metrics["sampling/restricted"] == pytest.approx(4 / 6)
    assert metrics["entropy/sampled"] == pytest.approx((1 + 2 + 3 + 4 + 5) / 5)


def test_lengths_and_turns_are_over_calls_that_have_tokens(make_call):
    calls = [
        make_call("1", (1, 2), (3,), attempt_id="a"),
        make_call("2", (1, 2, 3, 4), (5, 6, 7), attempt_id="a", finish_reason="length"),
        make_call("3", (1,) * 6, (2,) * 8, attempt_id="b", finish_reason="max_tokens"),
        make_call("4", (), (), attempt_id="b"),
    ]
    assert call_metrics(calls) == {
        "response_length/mean": 4.0,
        "response_length/max": 8.0,
        "response_length/clip_ratio": pytest.approx(2 / 3),
        "prompt_length/mean": 4.0,
        "prompt_length/max": 6.0,
        "num_turns/mean": 1.5,
        "num_turns/max": 2.0,
    }
    assert call_metrics([]) == {}
