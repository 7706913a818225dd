"""Work grows with what comes in and not with its square, and nothing recurses; counted, not timed.

What is counted: every Python function entered and every C function called from Python. Doubling the input may
double the count; a quadratic step would quadruple it. Thousands are enough for that, and for what would recurse.
"""

import sys

import pytest

from lightning_trainer.samples.batches import build_batch


def _counted(function) -> int:
    events = 0

    def count(frame, event, argument) -> None:
        nonlocal events
        events += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return events


def _serial(make_call, n):
    """Calls one after the other, each with a history that was cut: no tokens in common, one chain in time."""
    return [make_call(f"s{t}", (t, t + 1), (t + 2,), start=10 * t) for t in range(n)]


def _growing(make_call, n):
    """Calls that extend each other token for token: one sequence."""
    return [make_call(f"s{t}", (1,) * (2 * t + 1), (1,), start=10 * t) for t in range(n)]


def _retries(make_call, n):
    """One prompt asked again and again, with few different answers."""
    return [make_call(f"s{t}", (1, 2), (t % 3,), start=10 * t) for t in range(n)]


def _choices(make_call, n):
    """One response with many choices."""
    return [make_call("s", (1, 2), (3, t), choice=t) for t in range(n)]


def _comb(make_call, n):
    """A growing conversation with an abandoned answer at every turn."""
    trunk = _growing(make_call, n // 2)
    return trunk + [make_call(f"x{t}", call.prompt_ids, (2,), start=10 * t + 5) for t, call in enumerate(trunk)]


def _parallel(make_call, n):
    """Branches of two calls that all run at once."""
    return [
        make_call(
            f"s{t}", (t // 2,) if t % 2 == 0 else (t // 2, 7, 8), (7,), start=t % 2 * 100, end_ns=t % 2 * 100 + 50
        )
        for t in range(n)
    ]


def _one_response_id(make_call, n):
    """A server that gives every response the same id."""
    return [make_call(f"s{t}", (t,), (t,), start=10 * t, response_id="r") for t in range(n)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("shape", "n"),
    [
        (_serial, 2_500),
        (_growing, 1_000),
        (_retries, 2_500),
        (_choices, 2_500),
        (_comb, 1_000),
        (_parallel, 2_500),
        (_one_response_id, 2_500),
    ],
)
def test_twice_the_calls_are_twice_the_work(make_call, make_attempt, make_evaluation, make_policy, shape, n):
    _twice(make_call, make_attempt, make_evaluation, make_policy, shape, n, "discounted")


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["causal", "magrpo", "gigpo", "hierarchical"])
@pytest.mark.parametrize("shape", [_serial, _retries, _parallel])
def test_other_schemes_are_linear_too(make_call, make_attempt, make_evaluation, make_policy, shape, scheme):
    _twice(make_call, make_attempt, make_evaluation, make_policy, shape, 1_000, scheme)


def _twice(make_call, make_attempt, make_evaluation, make_policy, shape, n, scheme):
    attempts = [make_attempt("a1"), make_attempt("a2")]
    evaluations = [make_evaluation(1.0, "a1"), make_evaluation(0.0, "a2")]
    policy = make_policy(credit={"scheme": scheme}, max_sample_tokens=100_000)
    other = make_call("other", attempt_id="a2")
    builds: list = []

    def build(size):
        calls = [*shape(make_call, size), other]
        return _counted(lambda: builds.append(build_batch(calls, attempts, evaluations, policy, step=1)))

    once, twice = build(n), build(2 * n)
    assert builds[-1].batch is not None
    assert sum(row.calls for row in builds[-1].ledger) == 2 * n + 1
    assert twice < 2.3 * once
