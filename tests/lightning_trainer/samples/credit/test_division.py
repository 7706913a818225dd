"""Promise 4 over generated teams: where a scheme divides a reward, the parts sum to it; order has no effect."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_trainer.config.policies.credit import CREDIT_SETTINGS
from lightning_trainer.samples.credit.schemes.causal import Causal
from lightning_trainer.samples.credit.schemes.equal_shares import EqualShares
from lightning_trainer.samples.credit.schemes.hierarchical import Hierarchical
from lightning_trainer.samples.credit.schemes.registry import SCHEMES, credit_scheme
from lightning_trainer.types import Attempt, AttemptState, Trajectory, Transition

ACROSS_AGENTS = ("magrpo", "causal", "equal_shares", "hierarchical")
"""Schemes in which an agent's credit depends on the other agents of the attempt."""

_reward = st.integers(-64, 64).map(lambda number: number / 8)
# For each agent: its own reward, and for each call its reward, what it follows and what else led to it.
_call = st.tuples(_reward, st.integers(0, 9), st.sets(st.integers(0, 30), max_size=3))
_agent = st.tuples(_reward, st.lists(_call, min_size=1, max_size=6))
_attempt = st.tuples(_reward, st.lists(_agent, min_size=1, max_size=3))


def _play(number: int, outcome: float, agents, *, steps: bool, own: bool) -> list[Trajectory]:
    attempt = Attempt(f"a{number}", f"r{number}", "t", "g", state=AttemptState.SUCCEEDED)
    past: list[str] = []
    trajectories = []
    for index, (own_reward, calls) in enumerate(agents):
        transitions: list[Transition] = []
        for reward, origin, causes in calls:
            parent = transitions[origin].transition_id if origin < len(transitions) else None
            name = f"a{number}-{index}-{len(transitions)}"
            transitions.append(
                Transition(
                    transition_id=name,
                    agent=f"agent{index}",
                    attempt_id=attempt.attempt_id,
                    policy="p",
                    policy_version=0,
                    prompt_ids=(1, len(transitions) % 2),
                    response_ids=(2,),
                    behavior_logprobs=(-1.0,),
                    reward=reward if steps else None,
                    start_ns=len(past),
                    parent_id=parent,
                    causes=tuple(sorted({past[cause] for cause in causes if cause < len(past)})) or None,
                )
            )
            past.append(name)
        trajectories.append(
            Trajectory(attempt, f"agent{index}", "p", tuple(transitions), outcome, own_reward if own else None)
        )
    return trajectories


@st.composite
def groups(draw):
    steps, own = draw(st.booleans()), draw(st.booleans())
    attempts = draw(st.lists(_attempt, min_size=1, max_size=3))
    return [_play(number, *attempt, steps=steps, own=own) for number, attempt in enumerate(attempts)]


def _credits(scheme, group) -> dict[str, float]:
    trajectories = [trajectory for attempt in group for trajectory in attempt]
    return {
        step.transition_id: credit.value
        for trajectory, credits_T in zip(trajectories, scheme(trajectories), strict=True)
        for step, credit in zip(trajectory.transitions, credits_T, strict=True)
    }


def _whole(attempt, *, steps: bool) -> float:
    own = sum(trajectory.own_reward or 0.0 for trajectory in attempt)
    earned = sum(step.reward or 0.0 for trajectory in attempt for step in trajectory.transitions)
    return attempt[0].reward + own + (earned if steps else 0.0)


def _sum(credits, attempt, chosen=lambda step: True) -> float:
    return sum(credits[step.transition_id] for trajectory in attempt for step in trajectory.transitions if chosen(step))


@given(group=groups())
def test_equal_shares_sum_to_the_rewards_of_the_attempt(group):
    credits = _credits(EqualShares(), group)
    for attempt in group:
        assert _sum(credits, attempt) == pytest.approx(_whole(attempt, steps=False))


@pytest.mark.long
@given(group=groups(), weight=st.floats(0.01, 100))
def test_hierarchical_parts_sum_to_all_rewards_of_the_attempt(group, weight):
    credits = _credits(Hierarchical({"agent0": weight}), group)
    for attempt in group:
        assert _sum(credits, attempt) == pytest.approx(_whole(attempt, steps=True))


@pytest.mark.long
@given(group=groups())
def test_what_reaches_the_first_calls_of_the_graph_is_the_sum_of_all_rewards(group):
    credits = _credits(Causal(gamma=1.0), group)
    for attempt in group:
        reached = _sum(credits, attempt, lambda step: not step.causes and step.parent_id is None)
        assert reached == pytest.approx(_whole(attempt, steps=True))


@pytest.mark.long
@given(group=groups(), which=st.integers(0, 50))
def test_causal_credit_moves_only_what_led_to_a_reward(group, which):
    """Raise one step's reward: only that call and its ancestors in the graph may change."""
    steps = {step.transition_id: step for attempt in group for one in attempt for step in one.transitions}
    chosen = sorted(steps)[which % len(steps)]
    if steps[chosen].reward is None:
        return
    raised = [
        [
            replace(
                one,
                transitions=tuple(
                    replace(step, reward=step.reward + 64.0) if step.transition_id == chosen else step
                    for step in one.transitions
                ),
            )
            for one in attempt
        ]
        for attempt in group
    ]
    before, after = _credits(Causal(gamma=0.5), group), _credits(Causal(gamma=0.5), raised)
    allowed, frontier = set(), [chosen]
    while frontier:
        name = frontier.pop()
        if name not in allowed:
            allowed.add(name)
            step = steps[name]
            frontier += step.causes or ([step.parent_id] if step.parent_id else [])
    assert {name for name in before if before[name] != after[name]} <= allowed


@pytest.mark.parametrize("name", SCHEMES)
@settings(max_examples=30)
@given(group=groups(), seed=st.integers(0, 1000))
def test_the_order_of_trajectories_has_no_effect(name, group, seed):
    """Attempts and agents arrive in any order; what a transition is credited with stays the same, to rounding."""
    scheme = credit_scheme({"scheme": name})
    shuffled = [list(attempt) for attempt in group]
    source = random.Random(seed)
    source.shuffle(shuffled)
    for attempt in shuffled:
        source.shuffle(attempt)
    assert _credits(scheme, shuffled) == pytest.approx(_credits(scheme, group), nan_ok=False)


@pytest.mark.parametrize("name", [name for name in SCHEMES if name not in ACROSS_AGENTS])
@settings(max_examples=30)
@given(group=groups())
def test_no_agent_sees_another_where_the_scheme_is_by_agent(name, group):
    """An agent's credits are the same with the other agents away."""
    scheme = credit_scheme({"scheme": name})
    together = _credits(scheme, group)
    alone = _credits(scheme, [[one for one in attempt if one.agent == "agent0"] for attempt in group])
    beside = {key: together[key] for key in alone}
    assert alone == pytest.approx(beside), f"agents of {name!r} see each other; if they should, add it to ACROSS_AGENTS"


@pytest.mark.parametrize("name", [name for name, scheme in CREDIT_SETTINGS.items() if not scheme.one_team])
@settings(max_examples=30)
@given(attempts=st.lists(st.tuples(_reward, st.integers(0, 3), _reward), min_size=2, max_size=4), own=st.booleans())
def test_an_outcome_is_worth_the_same_whichever_route_led_to_it(name, attempts, own):
    """The first agent calls once, and hands over to one of three others or to none; the other's own rewards are its
    own, unless the scheme passes rewards back to what led to them."""
    own = own and not CREDIT_SETTINGS[name].needs_causes
    group = [
        _handed_over(number, outcome, route, earned if own else None)
        for number, (outcome, route, earned) in enumerate(attempts)
    ]
    scheme = credit_scheme({"scheme": name})
    together, alone = _credits(scheme, group), _credits(scheme, [attempt[:1] for attempt in group])
    found = {key: together[key] for key in alone}
    assert found == pytest.approx(alone), f"{name!r} gives more or less by who else took part; if so, set one_team"


@pytest.mark.parametrize("name", ["equal_shares", "hierarchical"])
def test_where_it_is_not_attempts_by_different_agents_are_not_compared(name):
    credits = _credits(credit_scheme({"scheme": name}), [_handed_over(0, 1.0, 0), _handed_over(1, 1.0, 2)])
    assert (credits["a0-0-0"], credits["a1-0-0"]) == (1.0, 0.5)
    assert CREDIT_SETTINGS[name].one_team


def _handed_over(number: int, outcome: float, route: int, earned: float | None = None) -> list[Trajectory]:
    """Make an attempt of one call of ``agent0``, and one more of the agent of that number; of none for 0. ``earned`` is
    what that agent and its call get themselves; None is no such rewards at all."""
    agents = [(reward, [(reward, 9, set())]) for reward in (0.0, earned or 0.0)]
    given = earned is not None
    first, *rest = _play(number, outcome, agents if route else agents[:1], steps=given, own=given)
    called = f"agent{route}"
    return [
        first,
        *(
            replace(
                one,
                agent=called,
                transitions=tuple(replace(step, agent=called, causes=(f"a{number}-0-0",)) for step in one.transitions),
            )
            for one in rest
        ),
    ]
