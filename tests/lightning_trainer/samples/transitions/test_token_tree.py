from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.samples.transitions.token_tree import token_tree
from lightning_trainer.types import Media, Transition


def token_parents(transitions):
    return list(token_tree(transitions).parents)


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
    assert token_tree([*twins, *after], owners=["x", "y", "y", "z"]).parents == (None, None, 1, 0)


def test_other_pictures_behind_the_same_placeholders_are_another_history(make_transition):
    cat, dog = (Media("image", f"https://host/{name}.png") for name in ("cat", "dog"))
    first = make_transition("1", (1, 7, 7), (3,), media=(cat,))
    goes_on = make_transition("2", (1, 7, 7, 3, 7, 7), (4,), media=(cat, dog))
    other = replace(goes_on, transition_id="3", media=(dog, dog))
    retry = replace(first, transition_id="4", response_ids=(9,), media=(dog,))
    tree = token_tree([first, goes_on, other, retry])
    assert tree.parents == (None, 0, None, None)


def test_runs_fork_at_the_exact_token(make_transition):
    """1 2 | 3 4 and 1 2 | 3 5 part inside their answers; 1 2 3 4 6 | 7 goes on with the first."""
    tree = token_tree(
        [
            make_transition("a", (1, 2), (3, 4)),
            make_transition("b", (1, 2), (3, 5)),
            make_transition("c", (1, 2, 3, 4, 6), (7,)),
        ]
    )
    assert [(run.start, run.token_ids, run.sampled, run.parent, run.ends) for run in tree.runs()] == [
        (0, (1, 2), False, None, ()),
        (2, (3,), True, 0, ()),
        (3, (4,), True, 1, (0,)),
        (4, (6,), False, 2, ()),
        (5, (7,), True, 3, (2,)),
        (3, (5,), True, 1, (1,)),
    ]
    assert tree.unique_tokens == 7


_ids = st.lists(st.integers(0, 1), min_size=1, max_size=6).map(tuple)


def _transition(ids) -> Transition:
    prompt, response = ids
    return Transition("t", "solver", "a", "math", 0, prompt, response, (-0.5,) * len(response), None, 0)


@given(st.lists(st.tuples(_ids, _ids), max_size=8))
def test_a_path_through_the_runs_is_what_the_engine_saw(calls):
    """Promise 3, and every token of every path is in exactly one run, sampled where some call sampled it there."""
    runs = token_tree([_transition(ids) for ids in calls]).runs()
    whole = [prompt + response for prompt, response in calls]
    tokens = {path[:end] for path in whole for end in range(1, len(path) + 1)}
    sampled = {(p + r)[: len(p) + end] for p, r in calls for end in range(1, len(r) + 1)}
    paths: list[tuple[int, ...]] = []
    for run in runs:
        above = () if run.parent is None else paths[run.parent]
        paths.append(above + run.token_ids)
        assert run.start == len(above)
        assert {paths[-1][:end] in sampled for end in range(run.start + 1, len(paths[-1]) + 1)} == {run.sampled}
        assert all(whole[call] == paths[-1] for call in run.ends)
    assert sum(len(run.token_ids) for run in runs) == len(tokens)
    assert sorted(call for run in runs for call in run.ends) == list(range(len(calls)))
