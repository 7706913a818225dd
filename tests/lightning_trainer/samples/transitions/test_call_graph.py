from lightning_trainer.samples.transitions.call_graph import call_graph


def _parents(calls):
    graph = call_graph(calls)
    assert list(graph.calls) == calls
    return list(graph.parents)


def test_calls_one_after_the_other_form_a_chain_even_when_the_history_is_rendered_anew(make_call):
    chain = [make_call(str(t), (t, t), (9,), start=10 * t) for t in range(4)]
    assert _parents(chain) == [None, 0, 1, 2]


def test_a_retry_is_an_alternative_to_the_first_try(make_call):
    start = make_call("start", (1,), (2,), start=0)
    first = make_call("first", (1, 2, 3), (4,), start=10)
    retry = make_call("retry", (1, 2, 3), (5,), start=20)
    goes_on = make_call("goes on", (1, 2, 3, 5, 6), (7,), start=30)
    assert _parents([start, first, retry, goes_on]) == [None, 0, 0, 2]


def test_a_retry_of_a_prompt_that_extends_nothing_is_known_by_what_goes_on_with_it(make_call):
    start = make_call("start", (1,), (2,), start=0)
    first = make_call("first", (8, 8), (4,), start=10)
    retry = make_call("retry", (8, 8), (5,), start=20)
    goes_on = make_call("goes on", (8, 8, 5, 6), (7,), start=30)
    assert _parents([start, first, retry, goes_on]) == [None, 0, 0, 2]


def test_a_state_that_comes_back_is_no_retry(make_call):
    """A room is left and entered again; an action that changes nothing leaves the prompt as it was."""
    rooms = [(1,), (2,), (1,), (1,), (3,), (1,)]
    calls = [make_call(str(t), room, (9, t), start=10 * t) for t, room in enumerate(rooms)]
    assert _parents(calls) == [None, 0, 1, 2, 3, 4]


def test_a_state_that_comes_back_is_no_retry_where_answers_are_kept_either(make_call):
    calls = [
        make_call("first", (1,), (2,), start=0),
        make_call("goes on", (1, 2, 3), (4,), start=10),
        make_call("afresh", (1,), (5,), start=20),
        make_call("goes on again", (1, 5, 3), (6,), start=30),
    ]
    assert _parents(calls) == [None, 0, 1, 2]


def test_a_try_that_was_given_up_is_no_step(make_call):
    calls = [
        make_call("start", (1,), (2,), start=0),
        make_call("given up", (8,), (4,), start=10, end_ns=25, complete=False),
        make_call("again", (8,), (5,), start=20),
        make_call("unheard", (9,), (), start=30, complete=False),
        make_call("next", (7,), (7,), start=40),
        make_call("cut off", (6,), (7,), start=50, complete=False),
    ]
    graph = call_graph(calls)
    assert [call.span_id for call in graph.calls] == ["start", "again", "next", "cut off"]
    assert graph.parents == (None, 0, 1, 2)


def test_a_call_without_tokens_is_a_step_by_time_alone(make_call):
    calls = [
        make_call("1", (1,), (2,), start=0),
        make_call("words", (), (), start=10),
        make_call("2", (1, 2, 3), (4,), start=20),
        make_call("3", (1, 2, 3, 4, 5), (6,), start=30),
    ]
    assert _parents(calls) == [None, 0, 1, 2]


def test_another_record_of_a_call_is_no_step(make_call):
    around = make_call("words", (), (), start=0, end_ns=9)
    calls = [make_call("1", (1,), (2,), start=1), make_call("2", (5,), (4,), start=20)]
    graph = call_graph([around, *calls])
    assert (list(graph.calls), graph.parents) == (calls, (None, 0))


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
    graph = call_graph([late, early, other])
    assert graph.calls == (early, late, other)
    assert graph.parents == graph.extends == (None, 0, None)


def test_of_equal_answers_one_that_can_be_trained_is_extended(make_call):
    calls = [make_call("stale", (1,), (2,), start=0), make_call("trained", (1,), (2,), start=10)]
    calls.append(make_call("next", (1, 2, 3), (4,), start=20))
    assert call_graph(calls).extends == (None, None, 0)
    graph = call_graph(calls, {"trained/0", "next/0"})
    assert (graph.extends, graph.parents) == ((None, None, 1), (None, None, 1))


def test_nothing_follows_nothing():
    assert _parents([]) == []
