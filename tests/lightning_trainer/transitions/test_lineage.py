from lightning_trainer.transitions.lineage import parents_of


def _parents(transitions, ends=None, spans=None):
    ends = ends or [transition.start_ns + 1 for transition in transitions]
    return parents_of(transitions, ends, spans or [transition.transition_id for transition in transitions])


def test_calls_one_after_the_other_form_a_chain_even_when_the_history_is_rendered_anew(make_transition):
    chain = [make_transition(str(t), (t, t), (9,), start_ns=10 * t) for t in range(4)]
    assert _parents(chain) == [None, 0, 1, 2]


def test_a_retry_is_an_alternative_to_the_first_try(make_transition):
    start = make_transition("start", (1,), (2,), start_ns=0)
    first = make_transition("first", (1, 2, 3), (4,), start_ns=10)
    retry = make_transition("retry", (1, 2, 3), (5,), start_ns=20)
    goes_on = make_transition("goes on", (1, 2, 3, 5, 6), (7,), start_ns=30)
    assert _parents([start, first, retry, goes_on]) == [None, 0, 0, 2]


def test_retries_of_a_prompt_without_token_parent_share_what_they_follow(make_transition):
    transitions = [
        make_transition("start", (1,), (2,), start_ns=0),
        make_transition("first", (8, 8), (4,), start_ns=10),
        make_transition("retry", (8, 8), (5,), start_ns=20),
        make_transition("retry of start", (1,), (6,), start_ns=30),
        make_transition("next", (7,), (7,), start_ns=40),
    ]
    assert _parents(transitions) == [None, 0, 0, None, 3]


def test_parallel_branches_are_joined_by_tokens_only(make_transition):
    transitions = [
        make_transition("left 1", (1,), (2,), start_ns=0),
        make_transition("right 1", (5,), (6,), start_ns=1),
        make_transition("left 2", (1, 2, 3), (4,), start_ns=20),
        make_transition("right 2", (5, 6, 7), (8,), start_ns=21),
        make_transition("rewritten", (9,), (9,), start_ns=40),
    ]
    assert _parents(transitions, ends=[10, 11, 30, 31, 50]) == [None, None, 0, 1, None]


def test_the_choices_of_one_response_are_parallel(make_transition):
    choices = [make_transition(f"s/{choice}", (1,), (choice,)) for choice in (2, 3)]
    after = make_transition("after", (9,), (9,), start_ns=10)
    assert _parents([*choices, after], spans=["s", "s", "t"]) == [None, None, None]


def test_a_clock_that_contradicts_the_tokens_is_not_believed(make_transition):
    """By time 'late' comes first and 'early' follows it; by tokens 'late' extends 'early': both at once is a ring."""
    late = make_transition("late", (1, 2, 3), (4,), start_ns=0)
    early = make_transition("early", (1,), (2,), start_ns=10)
    other = make_transition("other", (9,), (9,), start_ns=20)
    assert _parents([late, early, other]) == [1, None, None]


def test_nothing_follows_nothing():
    assert parents_of([], [], []) == []
