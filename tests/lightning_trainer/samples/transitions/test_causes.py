"""Which call led to which: from the span tree and time, and never from the order of arrival."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_trainer.samples.transitions.causes import span_parents, with_causes
from lightning_trainer.samples.transitions.trajectories import trajectories_of
from lightning_trainer.types import Attempt, AttemptState, Call, Fidelity, Span


def _call(name, start, end, above=None, *, agent="solver", prompt=None, trained=True) -> Call:
    prompt = prompt or tuple(ord(letter) for letter in name)
    return Call(
        call_id=f"{name}/0",
        trace_id="0" * 32,
        span_id=name,
        parent_span_id=above,
        response_id=None,
        agent=agent if trained else "bystander",
        rollout_id="r",
        attempt_id="a",
        policy="p",
        policy_version=0,
        prompt_ids=prompt,
        response_ids=(0,),
        behavior_logprobs=(-1.0,),
        finish_reason="stop",
        complete=True,
        start_ns=start,
        end_ns=end,
        fidelity=Fidelity.EXACT,
    )


def causes(calls, parents=None) -> dict[str, set[str]]:
    attempt = Attempt("a", "r", "t", "g", state=AttemptState.SUCCEEDED)
    own = [call for call in calls if call.agent != "bystander"]
    trajectories = with_causes(trajectories_of(own, {"a": attempt}, {}, {}), calls, parents or {})
    return {
        step.transition_id.removesuffix("/0"): {name.removesuffix("/0") for name in step.causes or ()}
        for trajectory in trajectories
        for step in trajectory.transitions
    }


def test_one_after_the_other_is_a_chain():
    assert causes([_call("a", 0, 1), _call("b", 2, 3), _call("c", 4, 5)]) == {"a": set(), "b": {"a"}, "c": {"b"}}


def test_parallel_sub_agents_come_from_one_call_and_meet_in_one():
    """The boss's span holds its two calls and two sub-agents that ran at once; each of those made two calls."""
    calls = [
        _call("b1", 0, 10, "boss", agent="boss"),
        _call("x1", 11, 20, "x", agent="worker"),
        _call("x2", 21, 40, "x", agent="worker"),
        _call("y1", 12, 22, "y", agent="worker"),
        _call("y2", 23, 30, "y", agent="worker"),
        _call("b2", 50, 60, "boss", agent="boss"),
    ]
    assert causes(calls, {"x": "tools", "y": "tools", "tools": "boss"}) == {
        "b1": set(),
        "x1": {"b1"},
        "x2": {"x1"},
        "y1": {"b1"},
        "y2": {"y1"},
        "b2": {"x2", "y2"},
    }


def test_branches_that_have_no_spans_of_their_own_are_told_apart_by_their_tokens():
    """Two conversations at once in one span: each call follows the one that it extends, and no other."""
    calls = [
        _call("b1", 0, 10, "run", prompt=(1,)),
        _call("c1", 5, 15, "run", prompt=(2,)),
        _call("b2", 12, 22, "run", prompt=(1, 0, 3)),
        _call("c2", 16, 26, "run", prompt=(2, 0, 3)),
        _call("end", 30, 40, "run", prompt=(4,)),
    ]
    assert causes(calls) == {"b1": set(), "c1": set(), "b2": {"b1"}, "c2": {"c1"}, "end": {"b2", "c2"}}


def test_branches_in_step_are_still_branches():
    """Both first calls end before both second calls begin: tokens say what time cannot."""
    calls = [
        _call("b1", 0, 10, "run", prompt=(1,)),
        _call("c1", 1, 9, "run", prompt=(2,)),
        _call("b2", 12, 22, "run", prompt=(1, 0, 3)),
        _call("c2", 13, 21, "run", prompt=(2, 0, 3)),
    ]
    assert causes(calls) == {"b1": set(), "c1": set(), "b2": {"b1"}, "c2": {"c1"}}


def test_an_agent_that_is_called_as_a_tool_stands_between_the_calls_around_it():
    """The second call extends the first one's tokens, but it was made because of what the sub-agent answered."""
    calls = [
        _call("b1", 0, 10, "boss", prompt=(1,), agent="boss"),
        _call("x1", 11, 20, "x", prompt=(5,), agent="worker"),
        _call("b2", 30, 40, "boss", prompt=(1, 0, 9), agent="boss"),
    ]
    assert causes(calls, {"x": "boss"}) == {"b1": set(), "x1": {"b1"}, "b2": {"x1"}}


def test_calls_that_are_not_trained_pass_on_what_led_to_them():
    calls = [_call("a", 0, 1), _call("foreign", 2, 3, trained=False), _call("c", 4, 5, agent="critic")]
    assert causes(calls) == {"a": set(), "c": {"a"}}


def test_choices_of_one_response_do_not_lead_to_each_other():
    one = _call("s", 0, 0, prompt=(1,))
    calls = [one, replace(one, call_id="s/1", response_ids=(7,)), _call("next", 1, 2)]
    assert causes(calls) == {"s": set(), "s/1": set(), "next": {"s", "s/1"}}


def test_a_clock_that_contradicts_the_tokens_makes_no_circle():
    calls = [_call("child", 0, 1, prompt=(1, 0, 2)), _call("parent", 5, 6, prompt=(1,))]
    found = causes(calls)
    assert found == {"child": set(), "parent": {"child"}}


def test_missing_parents_and_circles_end_the_chain():
    calls = [_call("a", 0, 1, "gone"), _call("b", 2, 3, "p"), _call("c", 4, 5, "q")]
    assert causes(calls, {"p": "q", "q": "p"}) == {"a": set(), "b": {"a"}, "c": {"b"}}


@pytest.mark.long
def test_spans_that_are_nested_100_000_deep_need_no_recursion():
    depth = 100_000
    parents = {str(level): str(level - 1) for level in range(1, depth)}
    calls = [_call("a", 0, 1, str(depth - 1)), _call("b", 2, 3, str(depth - 1))]
    assert causes(calls, parents) == {"a": set(), "b": {"a"}}


def test_parents_are_read_from_the_spans():
    spans = [Span("0" * 32, "x", "y", "n", 0, 1, {}), Span("0" * 32, "y", None, "n", 0, 1, {})]
    assert span_parents(spans) == {"x": "y"}


# -- generated traces ----------------------------------------------------------------------------------------------

_moves = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 6), st.integers(0, 6), st.integers(0, 5), st.booleans()), max_size=14
)


def _trace(moves):
    """Calls with any times, in spans that are nested in any way, some continuing an earlier one's tokens."""
    calls, parents = [], {f"p{number}": f"p{number // 2}" for number in range(1, 7)}
    for number, (start, length, above, origin, goes_on) in enumerate(moves):
        prompt = (number + 100,)
        if goes_on and origin < len(calls):
            prompt = (*calls[origin].prompt_ids, 0, number)
        agent = ("solver", "critic")[origin % 2]
        calls.append(_call(f"s{number}", start, start + length, f"p{above}", agent=agent, prompt=prompt))
    return calls, parents


@given(moves=_moves)
def test_causes_come_first_and_run_in_no_circle(moves):
    calls, parents = _trace(moves)
    found = causes(calls, parents)
    assert set(found) == {call.span_id for call in calls}
    seen: set[str] = set()
    while len(seen) < len(found):
        ready = {name for name, own in found.items() if own <= seen} - seen
        assert ready, "a circle"
        seen |= ready


@pytest.mark.long
@given(moves=_moves, seed=st.integers(0, 1000))
@settings(max_examples=200)
def test_order_of_arrival_and_duplicates_have_no_effect(moves, seed):
    calls, parents = _trace(moves)
    again = calls + calls
    random.Random(seed).shuffle(again)
    unique = list({call.call_id: call for call in again}.values())
    shuffled = dict(random.Random(seed).sample(sorted(parents.items()), len(parents)))
    assert causes(unique, shuffled) == causes(calls, parents)


@given(moves=st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=12))
def test_branches_in_spans_of_their_own_are_independent(moves):
    """Two agents at once, each in its own span, with any times that overlap: no edge from one to the other."""
    calls = [_call("x0", 0, 1000, "x", agent="worker"), _call("y0", 0, 1000, "y", agent="worker")]
    clock = {"x": 1000, "y": 1000}
    for number, (gap, length) in enumerate(moves):
        branch = "xy"[number % 2]
        start = clock[branch] + gap
        clock[branch] = start + length
        calls.append(_call(f"{branch}{number + 1}", start, start + length, branch, agent="worker"))
    for name, own in causes(calls, {"x": "root", "y": "root"}).items():
        assert all(cause[0] == name[0] for cause in own)
        assert own or name in ("x0", "y0")


@pytest.mark.parametrize("width", [2, 50])
def test_fan_out_and_fan_in(width):
    middle = [_call(f"w{number}", 10, 20, f"span{number}", agent="worker") for number in range(width)]
    found = causes([_call("first", 0, 1), *middle, _call("last", 30, 31)])
    names = {call.span_id for call in middle}
    assert found["last"] == names
    assert all(found[name] == {"first"} for name in names)
