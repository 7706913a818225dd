"""What the loop's benchmark computes from what it measured: parts of a trace, shapes of a model."""

import gzip
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.loop.limits import Shapes
from benchmarks.loop.parts import BETWEEN, seconds_of_parts

TRACE = [
    # thread 1: a layer with a product and attention, which has a product of its own; then the optimizer; 2 s between
    {"ph": "X", "cat": "user_annotation", "name": "layer", "pid": 1, "tid": 1, "ts": 0, "dur": 6e6},
    {"ph": "X", "cat": "cpu_op", "name": "aten::linear", "pid": 1, "tid": 1, "ts": 0, "dur": 3e6},
    {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "pid": 1, "tid": 1, "ts": 0.5e6, "dur": 2e6},
    {"ph": "X", "cat": "cpu_op", "name": "_BlockwiseAttention", "pid": 1, "tid": 1, "ts": 3e6, "dur": 2e6},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 3.5e6, "dur": 1e6},
    {
        "ph": "X",
        "cat": "user_annotation",
        "name": "Optimizer.step#AdamW.step",
        "pid": 1,
        "tid": 1,
        "ts": 8e6,
        "dur": 1e6,
    },
    {"ph": "X", "cat": "cpu_op", "name": "aten::mul", "pid": 1, "tid": 1, "ts": 8e6, "dur": 0.5e6},
    # what another thread does meanwhile, and what is no operation
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": 0, "dur": 1e6},
    {"ph": "X", "cat": "python_function", "name": "train", "pid": 1, "tid": 1, "ts": 0, "dur": 90e6},
    {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {}},
]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_an_operations_own_time_counts_once_and_what_is_between_is_said(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    text = json.dumps({"traceEvents": TRACE[::-1]}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    parts = seconds_of_parts(path)
    assert parts == pytest.approx(
        {"products": 3.0, "attention": 2.0, BETWEEN: 2.0, "optimizer": 1.0, "element by element": 1.0}
    )
    assert sum(parts.values()) == pytest.approx(9.0)


def test_a_trace_without_operations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="has no operations"):
        seconds_of_parts(path)


def test_the_shapes_of_a_small_model_have_its_parameters() -> None:
    config = SimpleNamespace(
        hidden_size=8,
        intermediate_size=20,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=3,
        vocab_size=50,
    )
    shapes = Shapes.of(config)
    assert shapes.kv_width == 2 * 2 * 2
    # queries, keys and values 16 x 8, output 8 x 8, gate and up 40 x 8, down 8 x 20; words 50 x 8
    assert shapes.parameters == 3 * (128 + 64 + 320 + 160) + 400
