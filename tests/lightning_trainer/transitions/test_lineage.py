from lightning_trainer.transitions.lineage import parents_of
from lightning_trainer.transitions.token_tree import token_tree


def _parents(calls):
    return parents_of(calls, token_tree(calls))


def test_calls_one_after_the_other_form_a_chain_even_when_the_history_is_rendered_anew(make_call):
    chain = [make_call(str(t), (t, t), (9,), start=10 * t) for t in range(4)]
    assert _parents(chain) == [None, 0, 1, 2]


def test_a_retry_is_an_alternative_to_the_first_try(make_call):
    start = make_call("start", (1,), (2,), start=0)
    first = make_call("first", (1, 2, 3), (4,), start=10)
    retry = make_call("retry", (1, 2, 3), (5,), start=20)
    goes_on = make_call("goes on", (1, 2, 3, 5, 6), (7,), start=30)
    assert _parents([start, first, retry, goes_on]) == [None, 0, 0, 2]


def test_retries_of_a_prompt_without_token_parent_share_what_they_follow(make_call):
    calls = [
        make_call("start", (1,), (2,), start=0),
        make_call("first", (8, 8), (4,), start=10),
        make_call("retry", (8, 8), (5,), start=20),
        make_call("retry of start", (1,), (6,), start=30),
        make_call("next", (7,), (7,), start=40),
    ]
    assert _parents(calls) == [None, 0, 0, None, 3]


def test_parallel_branches_are_joined_by_tokens_only(make_call):
    calls = [
        make_call("left 1", (1,), (2,), start=0, end_ns=10),
        make_call("right 1", (5,), (6,), start=1, end_ns=11),
        make_call("left 2", (1, 2, 3), (4,), start=20),
        make_call("right 2", (5, 6, 7), (8,), start=21),
        make_call("rewritten", (9,), (9,), start=40),
    ]
    assert _parents(calls) == [None, None, 0, 1, None]


def test_the_choices_of_one_response_are_parallel(make_call):
    choices = [make_call("s", (1,), (choice,), choice=choice) for choice in (2, 3)]
    after = make_call("after", (9,), (9,), start=10)
    assert _parents([*choices, after]) == [None, None, None]


def test_a_clock_that_contradicts_the_tokens_is_not_believed(make_call):
    """By time 'late' comes first and 'early' follows it; by tokens 'late' extends 'early': both at once is a ring."""
    late = make_call("late", (1, 2, 3), (4,), start=0)
    early = make_call("early", (1,), (2,), start=10)
    other = make_call("other", (9,), (9,), start=20)
    assert _parents([late, early, other]) == [1, None, None]


def test_nothing_follows_nothing():
    assert _parents([]) == []
