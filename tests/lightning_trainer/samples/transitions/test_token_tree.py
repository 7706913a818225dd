from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.samples.transitions.token_tree import token_parents as parents_of
from lightning_trainer.types import Media, Transition


def token_parents(transitions):
    return list(parents_of(transitions))


def test_a_prompt_that_starts_with_an_earlier_path_extends_it(make_transition):
    first = make_transition("1", (1, 2), (3,))
    second = make_transition("2", (1, 2, 3, 9), (4,))
    exactly = make_transition("3", (1, 2, 3, 9, 4), (5,))
    assert token_parents([first, second, exactly]) == [None, 0, 1]
    assert token_parents([exactly, second, first]) == [1, 2, None]


def test_the_longest_path_wins(make_transition):
    short, long = make_transition("1", (1,), (2,)), make_transition("2", (1,), (2, 3))
    assert token_parents([short, long, make_transition("3", (1, 2, 3, 4), (5,))])[2] == 1


def test_a_path_that_ends_inside_the_response_is_not_a_parent(make_transition):
    short, long = make_transition("1", (1,), (2,)), make_transition("2", (1,), (2, 3))
    assert token_parents([short, long]) == [None, None]


def test_retries_choices_and_rewritten_history_fork(make_transition):
    transitions = [
        make_transition("first try", (1, 2), (3, 4)),
        make_transition("retry", (1, 2), (5, 6)),
        make_transition("rewritten", (1, 2, 3, 9, 7), (8,)),
        make_transition("on the retry", (1, 2, 5, 6, 7), (8,)),
    ]
    assert token_parents(transitions) == [None, None, None, 1]


def test_of_equal_paths_the_first_is_extended(make_transition):
    twins = [make_transition(name, (1, 2), (3, 4)) for name in "ab"]
    assert token_parents([*twins, make_transition("c", (1, 2, 3, 4), (5,))]) == [None, None, 0]


def test_ids_that_share_bytes_are_not_confused(make_transition):
    """256 is 00 01 00 00 and 1 is 01 00 00 00: a prefix of bytes is a prefix of ids only at whole ids."""
    assert token_parents([make_transition("1", (256,), (1,)), make_transition("2", (256, 257), (1,))]) == [None, None]


def test_of_equal_paths_the_owners_own_is_extended(make_transition):
    twins = [make_transition(name, (1, 2), (3, 4)) for name in "ab"]
    after = [make_transition(name, (1, 2, 3, 4), (5,)) for name in "cd"]
    assert parents_of([*twins, *after], owners=["x", "y", "y", "z"]) == (None, None, 1, 0)


def test_other_pictures_behind_the_same_placeholders_are_another_history(make_transition):
    cat, dog = (Media("image", f"https://host/{name}.png") for name in ("cat", "dog"))
    first = make_transition("1", (1, 7, 7), (3,), media=(cat,))
    goes_on = make_transition("2", (1, 7, 7, 3, 7, 7), (4,), media=(cat, dog))
    other = replace(goes_on, transition_id="3", media=(dog, dog))
    retry = replace(first, transition_id="4", response_ids=(9,), media=(dog,))
    assert token_parents([first, goes_on, other, retry]) == [None, 0, None, None]


_ids = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)


def _transition(prompt, response) -> Transition:
    return Transition("t", "solver", "a", "math", 0, prompt, response, (-0.5,) * len(response), None, 0)


@given(st.lists(st.tuples(_ids, _ids, st.integers(0, 1)), max_size=8))
def test_the_longest_path_that_a_prompt_starts_with_is_extended(calls):
    """Against all pairs: the first of those with that path, one of the same owner before others."""
    paths = [prompt + response for prompt, response, _ in calls]
    expected = []
    for prompt, _, owner in calls:
        begun = [path for path in paths if prompt[: len(path)] == path]
        same = [place for place, path in enumerate(paths) if begun and path == max(begun, key=len)]
        expected.append(next((place for place in same if calls[place][2] == owner), same[0] if same else None))
    transitions = [_transition(prompt, response) for prompt, response, _ in calls]
    assert list(parents_of(transitions, [owner for _, _, owner in calls])) == expected
