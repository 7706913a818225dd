"""A sample token by token: the mask decides what has a logprob and an advantage."""

from dataclasses import replace

import pytest

from examples.calculator.quickstart.example_rollout import rollout_html
from examples.calculator.quickstart.report import ExampleSegment, ExampleToken, example_of
from lightning_trainer.sampling import support_of
from lightning_trainer.types import Sample, Segment

SAMPLE = Sample(
    sample_id="s1",
    policy="p",
    agent="solver",
    group_id="g",
    attempt_id="a1",
    token_ids=(10, 11, 12, 13, 14),
    loss_mask=(0, 1, 1, 0, 1),
    behavior_logprobs=(0.0, -0.1, -0.2, 0.0, -0.3),
    segments=(Segment(1, 3, "t1", 4, 1.0, "r"), Segment(4, 5, "t2", 5, None, "r")),
)


def test_every_token_says_what_training_told_it():
    rollout = example_of(
        SAMPLE, (0.0, 0.5, 0.5, 0.0, -0.5), lambda token: f"<{token}>", title="task", reward=1.0, step=2
    )
    assert rollout.tokens == (
        ExampleToken("<10>", 10, False),
        ExampleToken("<11>", 11, True, -0.1, 0.5, 0),
        ExampleToken("<12>", 12, True, -0.2, 0.5, 0),
        ExampleToken("<13>", 13, False),
        ExampleToken("<14>", 14, True, -0.3, -0.5, 1),
    )
    assert rollout.segments == (ExampleSegment("t1", 4, 1.0), ExampleSegment("t2", 5, None))


def test_advantages_of_another_sample_are_refused():
    with pytest.raises(ValueError, match="4 advantages for 5 tokens"):
        example_of(SAMPLE, (0.0,) * 4, str, title="task", reward=None)


def test_a_token_without_a_choice_was_sampled_and_is_not_trained():
    segment = Segment(1, 3, "t1", 4, 1.0, "r", support=support_of(99, [[11], None]))
    sample = replace(SAMPLE, loss_mask=(0, 0, 1, 0, 1), segments=(segment, SAMPLE.segments[1]))
    rollout = example_of(sample, (0.0, 0.0, 0.5, 0.0, -0.5), str, title="task", reward=1.0)
    assert rollout.tokens[1] == ExampleToken("11", 11, False, segment=0)
    page = rollout_html(rollout)
    assert "3 of 5 tokens sampled" in page
    assert page.count("call 1</b>") == 1
    assert "sampled without a choice, not trained" in page
