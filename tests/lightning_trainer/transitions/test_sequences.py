from lightning_trainer.transitions.sequences import fits, samples_of
from lightning_trainer.types import Credit, Segment


def _credits(*names):
    return {name: Credit(1.0, "row") for name in names}


def test_calls_that_extend_each_other_are_one_sequence(make_transition, make_trajectory):
    first = make_transition("1", (1, 2), (3, 4), behaviour_logprobs=(-0.1, -0.2))
    second = make_transition("2", (1, 2, 3, 4, 5), (6,), behaviour_logprobs=(-0.3,), policy_version=7, start_ns=1)
    (sample,) = samples_of(make_trajectory(first, second), _credits("1", "2"))
    assert sample.token_ids == (1, 2, 3, 4, 5, 6)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 1)
    assert sample.behaviour_logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, -0.3)
    assert sample.segments == (Segment(2, 4, "1", 0, 1.0, "row"), Segment(5, 6, "2", 7, 1.0, "row"))
    assert (sample.sample_id, sample.group_id, sample.attempt_id) == ("a1/2", "g", "a1")


def test_a_shared_turn_is_trained_in_the_first_path_only(make_transition, make_trajectory):
    trunk = make_transition("trunk", (1,), (2,))
    left = make_transition("left", (1, 2, 3), (4,), start_ns=1)
    right = make_transition("right", (1, 2, 5), (6,), start_ns=2)
    samples = samples_of(make_trajectory(trunk, left, right), _credits("trunk", "left", "right"))
    assert [(sample.token_ids, sample.loss_mask) for sample in samples] == [
        ((1, 2, 3, 4), (0, 1, 0, 1)),
        ((1, 2, 5, 6), (0, 0, 0, 1)),
    ]


def test_a_call_that_is_not_trained_stays_in_the_context_with_mask_zero(make_transition, make_trajectory):
    turns = [
        make_transition("1", (1,), (2,)),
        make_transition("2", (1, 2), (3,)),
        make_transition("3", (1, 2, 3), (4,)),
    ]
    (sample,) = samples_of(make_trajectory(*turns), _credits("1", "3"))
    assert (sample.token_ids, sample.loss_mask) == ((1, 2, 3, 4), (0, 1, 0, 1))


def test_an_observation_of_no_tokens_duplicates_nothing(make_transition, make_trajectory):
    turns = [make_transition("1", (1,), (2,)), make_transition("2", (1, 2), (3,))]
    (sample,) = samples_of(make_trajectory(*turns), _credits("1", "2"))
    assert (sample.token_ids, sample.loss_mask) == ((1, 2, 3), (0, 1, 1))


def test_a_turn_at_another_temperature_is_a_sequence_of_its_own(make_transition, make_trajectory):
    turns = [
        make_transition("1", (1,), (2,), temperature=0.5),
        make_transition("2", (1, 2, 3), (4,), temperature=1.0, start_ns=1),
        make_transition("3", (1, 2, 3, 4, 5), (6,), temperature=1.0, start_ns=2),
    ]
    samples = samples_of(make_trajectory(*turns), _credits("1", "2", "3"))
    assert [(sample.token_ids, sample.loss_mask, sample.temperature) for sample in samples] == [
        ((1, 2), (0, 1), 0.5),
        ((1, 2, 3, 4, 5, 6), (0, 0, 0, 1, 0, 1), 1.0),
    ]


def test_the_limit_counts_the_context(make_transition):
    transition = make_transition("1", (1,) * 6, (2,) * 2)
    assert fits(transition, 8)
    assert not fits(transition, 7)
