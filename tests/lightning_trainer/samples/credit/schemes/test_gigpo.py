"""Equations 3 and 5 to 8 of arXiv 2505.10978 on numbers that can be followed with a pencil."""

import math
from dataclasses import replace

import pytest

from lightning_trainer.samples.credit.schemes.gigpo import Gigpo, gigpo_advantages
from lightning_trainer.types import Media


def test_equation_8_by_hand_without_the_deviation():
    """Two attempts with R = 1 and 0: A^E = 0.5 and -0.5. State x was met three times with returns 0.5, 1 and 0, mean
    0.5: A^S = 0, 0.5 and -0.5. State y was met once: A^S = 0. With omega = 2 the last call: -0.5 + 2 * -0.5 = -1.5."""
    found = gigpo_advantages(
        [1.0, 0.0], [[0.5, 1.0], [0.0, 0.0]], [["x", "x"], ["y", "x"]], omega=2.0, normalize_by_std=False
    )
    assert found == [[0.5, 1.5], [-0.5, -1.5]]


def test_equation_8_by_hand_with_the_deviation():
    """R = 1 and 0: deviation sqrt(0.5), A^E = +-0.7071. x has the returns 1 and 0, so A^S is the same; omega = 1."""
    found = gigpo_advantages([1.0, 0.0], [[1.0], [0.0]], [["x"], ["x"]], omega=1.0, normalize_by_std=True)
    assert found == [[pytest.approx(math.sqrt(2), abs=1e-5)], [pytest.approx(-math.sqrt(2), abs=1e-5)]]


def test_without_the_step_term_it_is_the_episode_term_for_every_call():
    found = gigpo_advantages([2.0, 0.0], [[9.0, 8.0], [7.0]], [["x", "y"], ["x"]], omega=0.0, normalize_by_std=False)
    assert found == [[1.0, 1.0], [-1.0]]


@pytest.fixture
def step(make_transition, make_trajectory, make_attempt):
    """Make an attempt from ``(prompt, response, reward)``; each call follows the one before."""

    def attempt(name, *steps, reward=None):
        transitions = [
            make_transition(
                f"{name}{t}",
                prompt,
                response,
                reward=earned,
                attempt_id=name,
                parent_id=f"{name}{t - 1}" if t else None,
            )
            for t, (prompt, response, earned) in enumerate(steps)
        ]
        return make_trajectory(*transitions, reward=reward, attempt=make_attempt(name))

    return attempt


def test_returns_are_discounted_and_the_episode_is_not_by_hand(step, values):
    """gamma = 0.5. a: rewards 0 and 1, R = 1, G = 0.5 and 1. b: one call with 0, R = 0. A^E = +-0.5. (1,) was met
    with G = 0.5 and 0: A^S = +-0.25; prompt (1, 2, 3) once: 0."""
    attempts = [
        step("a", ((1,), (2,), 0.0), ((1, 2, 3), (4,), 1.0)),
        step("b", ((1,), (5,), 0.0)),
    ]
    assert values(Gigpo(gamma=0.5, normalize_by_std=False), attempts) == {"a0": 0.75, "a1": 0.5, "b0": -0.75}


def test_an_observation_is_the_same_state_whatever_was_said_before(step, values):
    """Both attempts are shown 7 after different first calls; the outcomes are 1 and 0, gamma = 1."""
    attempts = [
        step("a", ((1,), (2,), None), ((1, 2, 7), (4,), None), reward=1.0),
        step("b", ((9,), (5,), None), ((9, 5, 7), (6,), None), reward=0.0),
    ]
    by_prompt = values(Gigpo(gamma=1.0, normalize_by_std=False), attempts)
    assert by_prompt == {"a0": 0.5, "a1": 0.5, "b0": -0.5, "b1": -0.5}
    by_observation = values(Gigpo(gamma=1.0, normalize_by_std=False, state="observation"), attempts)
    assert by_observation == {"a0": 0.5, "a1": 1.0, "b0": -0.5, "b1": -1.0}


def test_a_state_that_the_agent_names_goes_before_the_prompt(step, values):
    """Prompts that all differ: b1 alone is in no named state."""
    attempts = [step("a", ((1,), (2,), 1.0), ((2,), (4,), 0.0)), step("b", ((3,), (2,), 0.0), ((4,), (2,), 0.0))]
    names = {"a0": "hall", "a1": "hall", "b0": "hall", "b1": None}
    attempts = [
        replace(one, transitions=tuple(replace(step, state=names[step.transition_id]) for step in one.transitions))
        for one in attempts
    ]
    found = values(Gigpo(gamma=0.0, normalize_by_std=False), attempts)
    assert found == pytest.approx({"a0": 0.5 + 2 / 3, "a1": 0.5 - 1 / 3, "b0": -0.5 - 1 / 3, "b1": -0.5})


def test_other_pictures_are_another_state(step, values):
    attempts = [step("a", ((1,), (2,), 1.0)), step("b", ((1,), (2,), 0.0))]
    (shown,) = attempts[0].transitions
    attempts[0] = replace(attempts[0], transitions=(replace(shown, media=(Media("image", "sha256:00"),)),))
    assert values(Gigpo(normalize_by_std=False), attempts) == {"a0": 0.5, "b0": -0.5}


def test_an_attempt_without_reward_is_compared_with_none(step, values):
    attempts = [step(name, ((1,), (2,), None), reward=reward) for name, reward in (("a", 1.0), ("b", 0.0), ("c", None))]
    assert values(Gigpo(normalize_by_std=False), attempts) == {"a0": 1.0, "b0": -1.0, "c0": None}


def test_two_calls_of_one_attempt_in_one_state_are_compared_too(step, values):
    """A retry of the same prompt: returns 1 and 0 in one state; the episode has no other to be compared with."""
    (attempt,) = [step("a", ((1,), (2,), 1.0), ((1,), (3,), 0.0))]
    assert values(Gigpo(gamma=0.0, normalize_by_std=False), [attempt]) == {"a0": 0.5, "a1": -0.5}
