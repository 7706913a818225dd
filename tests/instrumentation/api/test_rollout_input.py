"""What a rollout is given as its input is recorded as JSON in which judges find fields."""

import json
from dataclasses import dataclass
from typing import Any
from unittest.mock import Mock

import lightning_instrumentation as lt
import numpy as np
import pytest
from lightning_instrumentation import semconv


@dataclass
class Known:
    answer: str
    numbers: Any = None


class Model:
    """As pydantic's, or one whose methods fail."""

    def __init__(self, fields: Any) -> None:
        self._fields = fields

    def model_dump(self, *, mode: str) -> Any:
        if self._fields is None:
            raise ValueError("no fields")
        return self._fields

    def __str__(self) -> str:
        return "a model"


@pytest.mark.parametrize(
    ("given", "recorded"),
    [
        (Known("4", np.array([1, 2])), {"answer": "4", "numbers": [1, 2]}),
        ([Model({"answer": "4"}), Model(None)], [{"answer": "4"}, "a model"]),
        ({"n": np.int64(3), "of": Known("4")}, {"n": 3, "of": {"answer": "4", "numbers": None}}),
    ],
    ids=["dataclass", "model", "NumPy"],
)
def test_an_input_is_recorded_with_its_fields_and_numbers(recording, given, recorded):
    """Before, as its text, in which a judge's `reference = "answer"` found nothing."""
    with lt.rollout("t", input=given):
        pass
    assert json.loads(recording.span("rollout").attributes[semconv.ROLLOUT_INPUT]) == recorded


def test_a_large_array_or_a_mock_in_an_input_is_its_text(recording):
    mock = Mock()
    with lt.rollout("t", input=[np.zeros(100_000), mock]):
        pass
    assert mock.mock_calls == []
    assert len(recording.span("rollout").attributes[semconv.ROLLOUT_INPUT]) < 200
