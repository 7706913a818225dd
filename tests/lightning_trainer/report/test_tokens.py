"""Colors of tokens: by how unlikely they were."""

import math

import pytest

from lightning_trainer.report.tokens import surprise_css


@pytest.mark.parametrize(
    ("logprob", "css"),
    [
        (None, "u"),
        (math.nan, "u"),
        (-math.inf, "s5"),
        (-9999.0, "s5"),
        (-4.0, "s5"),
        (-3.9, "s4"),
        (-0.5, "s1"),
        (0.0, "z"),
    ],
)
def test_a_token_is_colored_by_its_surprise_however_large_and_by_none_that_is_not_known(logprob, css):
    assert surprise_css(logprob) == css
