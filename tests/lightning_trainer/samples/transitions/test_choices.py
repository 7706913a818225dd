"""Tokens without a choice are masked with a reason of their own, wherever they lie, and the ledger balances."""

from lightning_trainer.config import PolicyConfig
from lightning_trainer.samples.batches import build_batch
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.sequences import samples_of
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.types import Credit, Outcome

ALL = None
SHAPING = Shaping(presence_penalty=0.5)


def _policy(**changes) -> PolicyConfig:
    return PolicyConfig(name="math", agents=("solver",), model="m", **changes)


def _built(
    make_call, make_attempt, make_evaluation, left, *, responses=((3, 4, 5), (3, 6, 5)), prompt=(1, 2), **changes
):
    """Two attempts of a group; ``left`` is what each token of every response could have been."""
    calls, attempts, evaluations = [], [], []
    for number, (name, response) in enumerate(zip(("a1", "a2"), responses, strict=True)):
        support = support_of(10, left)
        calls.append(make_call(name, prompt, response, attempt_id=name, support=support, shaping=SHAPING))
        attempts.append(make_attempt(name))
        evaluations.append(make_evaluation(float(number), name))
    return build_batch(calls, attempts, evaluations, _policy(**changes), 1)


def _accounts(build):
    return {(row.outcome, row.reason): (row.tokens, row.calls) for row in build.ledger}


def test_a_token_without_a_choice_is_masked_inside_of_its_segment(make_call, make_attempt, make_evaluation):
    build = _built(make_call, make_attempt, make_evaluation, [[3], [4, 6], ALL])
    assert build.batch is not None
    for sample in build.batch.samples:
        assert sample.loss_mask == (0, 0, 0, 1, 1)
        assert sample.behavior_logprobs == (0.0, 0.0, 0.0, -0.5, -0.5)
        (segment,) = sample.segments
        assert (segment.start, segment.end, segment.shaping) == (2, 5, SHAPING)
        assert list(sample.trained_in(segment)) == [3, 4]
    assert _accounts(build) == {(Outcome.TRAINED, "sampled"): (4, 2), (Outcome.MASKED, "no_choice"): (2, 2)}
    assert build.call_outcomes["a1/0"][0] is Outcome.TRAINED


def test_a_response_without_any_choice_has_no_segment_and_is_masked(make_call, make_attempt, make_evaluation):
    build = _built(make_call, make_attempt, make_evaluation, [[3], [4], [5]], responses=((3, 4, 5), (3, 4, 5)))
    assert build.batch is None
    assert _accounts(build) == {(Outcome.MASKED, "no_choice"): (6, 2)}


def test_what_is_cut_what_had_no_choice_and_what_is_trained_are_told_apart(make_call, make_attempt, make_evaluation):
    build = _built(
        make_call,
        make_attempt,
        make_evaluation,
        [[3], [4, 6], ALL],
        prompt=(1, 2, 1, 2, 1, 2),
        max_sample_tokens=8,
        over_length="cut",
    )
    assert build.batch is not None
    assert [sample.loss_mask for sample in build.batch.samples] == [(0,) * 7 + (1,)] * 2
    assert [len(segment.support or ()) for sample in build.batch.samples for segment in sample.segments] == [2, 2]
    assert _accounts(build) == {
        (Outcome.TRAINED, "sampled"): (2, 2),
        (Outcome.MASKED, "no_choice"): (2, 2),
        (Outcome.DROPPED, "cut"): (2, 2),
    }


def test_where_nothing_of_what_is_kept_had_a_choice_nothing_is_trained(make_call, make_attempt, make_evaluation):
    build = _built(
        make_call,
        make_attempt,
        make_evaluation,
        [[3], ALL, ALL],
        prompt=(1,) * 7,
        max_sample_tokens=8,
        over_length="cut",
    )
    assert build.batch is None
    assert _accounts(build) == {(Outcome.MASKED, "no_choice"): (2, 2), (Outcome.DROPPED, "cut"): (4, 2)}


def test_a_group_that_is_not_trained_has_one_reason(make_call, make_attempt, make_evaluation):
    calls = [make_call(name, attempt_id=name, support=support_of(10, [[3], ALL])) for name in ("a1", "a2")]
    attempts = [make_attempt(name) for name in ("a1", "a2")]
    evaluations = [make_evaluation(1.0, name) for name in ("a1", "a2")]
    build = build_batch(calls, attempts, evaluations, _policy(), 1)
    assert _accounts(build) == {(Outcome.MASKED, "zero_variance_group"): (4, 2)}


def test_what_is_imitated_is_learned_by_the_model_itself(make_call, make_attempt, make_evaluation):
    build = _built(make_call, make_attempt, make_evaluation, [[3], [4, 6], ALL], algorithm={"preset": "sft"})
    assert build.batch is not None
    (sample,) = build.batch.samples
    assert sample.loss_mask == (0, 0, 1, 1, 1)
    assert [(segment.shaping, segment.support) for segment in sample.segments] == [(None, None)]


def test_of_two_records_the_one_that_knows_the_choices_is_kept(make_call, make_attempt, make_evaluation):
    with_support = make_call("z", support=support_of(10, [[3, 4], ALL]), response_id="r")
    build = build_batch(
        [make_call("a", response_id="r"), with_support, make_call("b", (1, 2), (3, 7), attempt_id="a2")],
        [make_attempt("a1"), make_attempt("a2")],
        [make_evaluation(1.0, "a1"), make_evaluation(0.0, "a2")],
        _policy(),
        1,
    )
    assert build.batch is not None
    supports = {s.transition_id: s.support for sample in build.batch.samples for s in sample.segments}
    assert supports["z/0"] == with_support.support


def test_segments_of_one_sequence_have_each_their_own(make_transition, make_trajectory):
    first = make_transition("1", (1, 2), (3, 4), support=support_of(10, [[3], ALL]))
    second = make_transition("2", (1, 2, 3, 4, 5), (6,), start_ns=1, extends="1", shaping=SHAPING)
    (sample,) = samples_of([make_trajectory(first, second)], {name: Credit(1.0, "row") for name in "12"}, Limit(1000))
    assert sample.loss_mask == (0, 0, 0, 1, 0, 1)
    assert [(s.support, s.shaping) for s in sample.segments] == [(first.support, None), (None, SHAPING)]
