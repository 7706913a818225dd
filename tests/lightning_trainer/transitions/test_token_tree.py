from lightning_trainer.transitions.token_tree import token_parents


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
