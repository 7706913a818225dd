import pytest

from lightning_trainer.samples.transitions.length_limit import Limit


@pytest.mark.parametrize(
    ("limit", "trainable"),
    [
        (Limit(8), 2),
        (Limit(7), 0),
        (Limit(8, "cut"), 2),
        (Limit(7, "cut"), 1),
        (Limit(6, "cut"), 0),
        (Limit(3, "cut"), 0),
    ],
)
def test_the_limit_counts_the_context(make_transition, limit, trainable):
    assert limit.trainable(make_transition("1", (1,) * 6, (2,) * 2)) == trainable


def test_a_cut_keeps_the_first_tokens_with_their_own_logprobs(make_transition):
    transition = make_transition("1", (1, 2), (3, 4, 5), behavior_logprobs=(-0.1, -0.2, -0.3))
    cut = Limit(4, "cut").cut(transition)
    assert (cut.prompt_ids, cut.response_ids, cut.behavior_logprobs) == ((1, 2), (3, 4), (-0.1, -0.2))


def test_what_fits_is_left_as_it_is(make_transition):
    transition = make_transition("1", (1, 2), (3,))
    assert Limit(3, "cut").cut(transition) is transition
