import pytest

from lightning_trainer.samples.transitions.trajectories import trajectories_of


def test_there_is_one_trajectory_for_each_agent_of_each_attempt(make_call, make_attempt):
    calls = [
        make_call("s3", (1, 2, 3, 4, 5), start=20),
        make_call("s2", start=10, agent="critic"),
        make_call("s1", start=0),
        make_call("s4", attempt_id="a2"),
    ]
    attempts = {name: make_attempt(name) for name in ("a1", "a2")}
    trajectories = trajectories_of(calls, attempts, {"a1": 1.0}, {"s3/0": 0.5})
    assert [(t.attempt.attempt_id, t.agent, t.reward) for t in trajectories] == [
        ("a1", "critic", 1.0),
        ("a1", "solver", 1.0),
        ("a2", "solver", None),
    ]
    first, second = trajectories[1].transitions
    assert (first.transition_id, first.reward, first.parent_id) == ("s1/0", None, None)
    assert (second.transition_id, second.reward, second.parent_id) == ("s3/0", 0.5, "s1/0")


@pytest.mark.parametrize(("requested", "behavior"), [(1.0, 1.0), (0.7, 0.7), (0.0, 1.0), (1e-6, 0.01), (0.001, 0.01)])
def test_the_temperature_is_what_the_engine_made_of_the_request(requested, behavior, make_call, make_attempt):
    call = make_call("s1", temperature=requested)
    (trajectory,) = trajectories_of([call], {"a1": make_attempt()}, {}, {})
    assert trajectory.transitions[0].temperature == behavior


def test_a_call_that_was_not_checked_is_refused_by_name(make_call, make_attempt):
    with pytest.raises(ValueError, match="s1/0"):
        trajectories_of([make_call("s1", behavior_logprobs=None)], {"a1": make_attempt()}, {}, {})
