from dataclasses import replace

import pytest

from lightning_trainer.experts import RoutedExperts
from lightning_trainer.samples.transitions.length_limit import Limit
from lightning_trainer.samples.transitions.sequences import samples_of
from lightning_trainer.types import Credit, Media, Segment

AMPLE = Limit(1000)


def _credits(*names):
    return {name: Credit(1.0, "row") for name in names}


def _shapes(samples):
    return [(sample.token_ids, sample.loss_mask) for sample in samples]


def test_calls_that_extend_each_other_are_one_sequence(make_transition, make_trajectory):
    first = make_transition("1", (1, 2), (3, 4), behavior_logprobs=(-0.1, -0.2))
    second = make_transition(
        "2", (1, 2, 3, 4, 5), (6,), behavior_logprobs=(-0.3,), policy_version=7, start_ns=1, extends="1"
    )
    (sample,) = samples_of([make_trajectory(first, second)], _credits("1", "2"), AMPLE)
    assert sample.token_ids == (1, 2, 3, 4, 5, 6)
    assert sample.loss_mask == (0, 0, 1, 1, 0, 1)
    assert sample.behavior_logprobs == (0.0, 0.0, -0.1, -0.2, 0.0, -0.3)
    assert sample.segments == (Segment(2, 4, "1", 0, 1.0, "row"), Segment(5, 6, "2", 7, 1.0, "row", order=1))
    assert (sample.sample_id, sample.group_id, sample.attempt_id) == ("a1/2", "g", "a1")


def test_each_position_has_the_experts_that_were_recorded_of_it_first(make_transition, make_trajectory):
    def experts(tokens, call):
        return RoutedExperts(0, 1, 1, 1, bytes([call] * (tokens - 1)))

    first = make_transition("1", (1, 2), (3, 4), routed_experts=experts(4, 1))
    second = make_transition("2", (1, 2, 3, 4, 5), (6,), start_ns=1, extends="1", routed_experts=experts(6, 2))
    credits = _credits("1", "2")
    (sample,) = samples_of([make_trajectory(first, second)], credits, AMPLE)
    told = [segment.routed_experts for segment in sample.segments]
    assert told == [RoutedExperts(0, 1, 1, 1, bytes([1, 1, 1])), RoutedExperts(3, 1, 1, 1, bytes([2, 2]))]
    (sample,) = samples_of([make_trajectory(replace(first, routed_experts=None), second)], credits, AMPLE)
    assert [segment.routed_experts for segment in sample.segments] == [None, experts(6, 2)]
    (sample,) = samples_of([make_trajectory(first)], credits, Limit(3, "cut"))
    assert sample.segments[0].routed_experts == RoutedExperts(0, 1, 1, 1, bytes([1, 1]))


def test_a_shared_turn_is_trained_in_the_first_path_only(make_transition, make_trajectory):
    trunk = make_transition("trunk", (1,), (2,))
    left = make_transition("left", (1, 2, 3), (4,), start_ns=1, extends="trunk")
    right = make_transition("right", (1, 2, 5), (6,), start_ns=2, extends="trunk")
    samples = samples_of([make_trajectory(trunk, left, right)], _credits("trunk", "left", "right"), AMPLE)
    assert [(sample.token_ids, sample.loss_mask) for sample in samples] == [
        ((1, 2, 3, 4), (0, 1, 0, 1)),
        ((1, 2, 5, 6), (0, 0, 0, 1)),
    ]


def test_a_call_that_is_not_trained_stays_in_the_context_with_mask_zero(make_transition, make_trajectory):
    turns = [
        make_transition("1", (1,), (2,)),
        make_transition("2", (1, 2), (3,), extends="1"),
        make_transition("3", (1, 2, 3), (4,), extends="2"),
    ]
    (sample,) = samples_of([make_trajectory(*turns)], _credits("1", "3"), AMPLE)
    assert (sample.token_ids, sample.loss_mask) == ((1, 2, 3, 4), (0, 1, 0, 1))


def test_an_observation_of_no_tokens_duplicates_nothing(make_transition, make_trajectory):
    turns = [make_transition("1", (1,), (2,)), make_transition("2", (1, 2), (3,), extends="1")]
    (sample,) = samples_of([make_trajectory(*turns)], _credits("1", "2"), AMPLE)
    assert (sample.token_ids, sample.loss_mask) == ((1, 2, 3), (0, 1, 1))


def test_a_turn_at_another_temperature_is_a_sequence_of_its_own(make_transition, make_trajectory):
    turns = [
        make_transition("1", (1,), (2,), temperature=0.5),
        make_transition("2", (1, 2, 3), (4,), temperature=1.0, start_ns=1, extends="1"),
        make_transition("3", (1, 2, 3, 4, 5), (6,), temperature=1.0, start_ns=2, extends="2"),
    ]
    samples = samples_of([make_trajectory(*turns)], _credits("1", "2", "3"), AMPLE)
    assert [(sample.token_ids, sample.loss_mask, sample.temperature) for sample in samples] == [
        ((1, 2), (0, 1), 0.5),
        ((1, 2, 3, 4, 5, 6), (0, 0, 0, 1, 0, 1), 1.0),
    ]


@pytest.fixture
def handed_over(make_transition, make_trajectory, make_attempt):
    """A planner's call, a worker's that goes on with its conversation, and another attempt that does so too."""
    plan = make_transition("plan", (1, 2), (3,))
    work = make_transition("work", (1, 2, 3, 4), (5,), agent="worker", start_ns=1)
    forked = make_transition("forked", (1, 2, 3, 4, 5), (6,), attempt_id="a2", agent="worker", start_ns=2)
    own = make_transition("own", (1, 2), (9,), attempt_id="a2")
    planners = [make_trajectory(plan), make_trajectory(own, attempt=make_attempt("a2"))]
    workers = [
        replace(trajectory, agent="worker")
        for trajectory in (make_trajectory(work), make_trajectory(forked, attempt=make_attempt("a2")))
    ]
    return [planners[0], workers[0], planners[1], workers[1]]


def test_call_by_call_every_transition_is_a_sequence(handed_over):
    samples = samples_of(handed_over, _credits("plan", "work", "own", "forked"), AMPLE, "calls")
    assert [len(sample.segments) for sample in samples] == [1, 1, 1, 1]


def test_merged_nobody_shares_with_another_agent_or_attempt(handed_over):
    assert len(samples_of(handed_over, _credits("plan", "work", "own", "forked"), AMPLE, "merged")) == 4


def test_over_the_groups_tree_agents_and_attempts_share_one_sequence(handed_over):
    own, tree = samples_of(handed_over, _credits("plan", "work", "own", "forked"), AMPLE, "tree")
    assert (own.token_ids, own.loss_mask) == ((1, 2, 9), (0, 0, 1))
    assert (tree.token_ids, tree.loss_mask) == ((1, 2, 3, 4, 5, 6), (0, 0, 1, 0, 1, 1))
    assert (tree.agent, tree.attempt_id) == ("worker", "a2")
    assert [(s.transition_id, s.agent, s.attempt_id) for s in tree.segments] == [
        ("plan", "solver", "a1"),
        ("work", None, "a1"),
        ("forked", None, None),
    ]


def test_what_several_attempts_sampled_alike_is_trained_for_each(make_transition, make_trajectory, make_attempt):
    same = [make_transition(name, (1, 2), (3,), attempt_id=name) for name in ("a1", "a2")]
    trajectories = [make_trajectory(step, attempt=make_attempt(step.attempt_id)) for step in same]
    samples = samples_of(trajectories, _credits("a1", "a2"), AMPLE, "tree")
    assert _shapes(samples) == [((1, 2, 3), (0, 0, 1))] * 2


def test_a_cut_ends_inside_of_the_last_response(make_transition, make_trajectory):
    turns = [make_transition("1", (1,), (2,)), make_transition("2", (1, 2, 3), (4, 5, 6), extends="1")]
    (sample,) = samples_of([make_trajectory(*turns)], _credits("1", "2"), Limit(5, "cut"))
    assert (sample.token_ids, sample.loss_mask) == ((1, 2, 3, 4, 5), (0, 1, 0, 1, 1))
    assert sample.behavior_logprobs == (0.0, -0.5, 0.0, -0.5, -0.5)
    assert [(segment.start, segment.end) for segment in sample.segments] == [(1, 2), (3, 5)]


def test_a_sample_refers_to_the_pictures_of_its_last_prompt(make_transition, make_trajectory):
    cat, dog = Media("image", "https://host/cat.png"), Media("image", "sha256:00", "image/png")
    turns = [
        make_transition("1", (1,), (2,), media=(cat,)),
        make_transition("2", (1, 2, 3), (4,), media=(cat, dog), extends="1"),
    ]
    (sample,) = samples_of([make_trajectory(*turns)], _credits("1", "2"), AMPLE)
    assert sample.media == (cat, dog)
