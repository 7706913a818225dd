"""A numbering never lies: it is continued, or another is begun."""

from lightning_instrumentation.spans.sequence import _MOST_ANSWERS, _MOST_ATTEMPTS, Sequences


def test_each_attempt_has_a_numbering_of_its_own():
    sequences = Sequences()
    (a, first), (b, other), (a_again, second) = (sequences.take(attempt) for attempt in "aba")
    assert (first, second, other) == (1, 2, 1)
    assert a == a_again != b
    assert sequences.started("a") == (a, 2)
    assert sequences.started("never") is None


def test_what_was_forgotten_is_not_continued():
    sequences = Sequences()
    old, _ = sequences.take("old")
    for number in range(_MOST_ATTEMPTS):
        sequences.take(f"attempt-{number}")
    assert sequences.started("old") is None
    new, number = sequences.take("old")
    assert (new != old, number) == (True, 1)


def test_a_new_process_numbers_under_another_id():
    sequences = Sequences()
    before, _ = sequences.take("a")
    sequences.renew()
    after, number = sequences.take("a")
    assert (before != after, number) == (True, 1)


def test_the_newest_responses_of_an_attempt_are_known():
    sequences = Sequences()
    sequences.answered("nobody", "r")
    sequences.take("a")
    sequences.take("b")
    for number in range(_MOST_ANSWERS + 1):
        sequences.answered("a", f"r{number}")
    known = [sequences.has_answer(*one) for one in (("a", "r1"), ("a", f"r{_MOST_ANSWERS}"), ("a", "r0"), ("b", "r1"))]
    assert known == [True, True, False, False]
    assert not sequences.has_answer("nobody", "r")
