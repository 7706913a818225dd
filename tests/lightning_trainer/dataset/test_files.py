"""What is written is what is read; a file is whole or not there, and says which schema it has."""

import json
import re
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dataset.formats import trl
from lightning_trainer.dataset.formats.json_lines import read_samples_json_lines, write_json_lines
from lightning_trainer.dataset.formats.parquet import SCHEMAS, read_ledger, read_samples_parquet, write_parquet
from lightning_trainer.dataset.forms import Form, write_samples
from lightning_trainer.dataset.rows import SAMPLES, sample_of, sample_row
from lightning_trainer.errors import DatasetError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.samples.batches import Build
from lightning_trainer.sampling import Shaping, support_of
from lightning_trainer.types import LedgerRow, Media, Outcome, Sample, Segment, TrainingBatch

_logprobs = st.floats(-50, 0, width=32)
_finite = st.floats(-100, 100)
_shapings = st.builds(
    Shaping,
    st.lists(st.tuples(st.integers(0, 99), _finite), max_size=2).map(tuple),
    _finite,
    _finite,
    st.floats(0.1, 9),
)
_names = st.text('ab/@é\n"', min_size=1, max_size=8)


def _supports(length: int):
    entries = st.sets(st.integers(0, 99), min_size=2).map(sorted)
    return st.lists(st.none() | entries, min_size=length, max_size=length).map(lambda left: support_of(100, left))


@st.composite
def _samples(draw) -> Sample:
    """A prompt, then sampled and observed runs in turn."""
    runs = draw(st.lists(st.integers(1, 4), min_size=2, max_size=7))
    mask = [bit for index, length in enumerate(runs) for bit in [index % 2] * length]
    segments, start = [], 0
    for index, length in enumerate(runs):
        if index % 2:
            credit = draw(st.none() | st.floats(allow_nan=False, allow_infinity=False))
            segments.append(
                Segment(
                    start,
                    start + length,
                    draw(_names),
                    draw(st.none() | st.integers(0, 9)),
                    credit,
                    draw(_names),
                    shaping=draw(st.none() | _shapings),
                    support=draw(st.none() | _supports(length)),
                    routed_experts=draw(st.none() | st.just(RoutedExperts(0, 1, 2, 1, bytes(range(2 * length))))),
                )
            )
        start += length
    return Sample(
        sample_id=draw(_names),
        policy=draw(_names),
        agent=draw(_names),
        group_id=draw(_names),
        attempt_id=draw(_names),
        token_ids=tuple(draw(st.lists(st.integers(0, 2**31 - 1), min_size=len(mask), max_size=len(mask)))),
        loss_mask=tuple(mask),
        behavior_logprobs=tuple(draw(_logprobs) if bit else 0.0 for bit in mask),
        segments=tuple(segments),
        temperature=draw(st.floats(0.1, 2)),
    )


LEDGER = (
    LedgerRow("solver", "math", 3, Outcome.TRAINED, "sampled", 5, 2),
    LedgerRow("x", None, None, Outcome.DROPPED, "no_agent", 1, 1),
)
ONE = Sample("s", "math", "solver", "g", "a", (1, 2, 3, 4, 5), (0, 0, 1, 0, 1), (0.0, 0.0, -0.5, 0.0, -1.0),
             (Segment(2, 3, "c/0", 3, 1.0, "a"), Segment(4, 5, "d/0", 3, 1.0, "a")))  # fmt: skip


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(samples=st.lists(_samples(), max_size=5))
def test_samples_come_back_from_both_files(tmp_path_factory, samples: list[Sample]) -> None:
    folder = tmp_path_factory.mktemp("files")
    rows = [sample_row(sample, None) for sample in samples]
    write_parquet(rows, folder / "s.parquet", SAMPLES, LEDGER)
    write_json_lines(rows, folder / "s.jsonl", SAMPLES)
    assert read_samples_parquet(folder / "s.parquet") == tuple(samples)
    assert read_samples_json_lines(folder / "s.jsonl") == tuple(samples)
    assert read_ledger(folder / "s.parquet") == LEDGER


def test_the_schema_of_a_file_is_the_documented_one(tmp_path) -> None:
    write_parquet([sample_row(ONE, {"s": [0.0, 0.0, 0.7, 0.0, -0.7]})], tmp_path / "s.parquet", SAMPLES, LEDGER)
    table = pq.read_table(tmp_path / "s.parquet")
    assert table.schema.equals(SCHEMAS[SAMPLES])
    assert table.schema.metadata[b"lightning_trainer.schema"] == b"samples/1"
    assert table["advantages"].to_pylist() == [[0.0, 0.0, pytest.approx(0.7), 0.0, pytest.approx(-0.7)]]


def test_a_file_of_another_schema_is_refused(tmp_path) -> None:
    write_json_lines([{"a": 1}], tmp_path / "s.jsonl")
    with pytest.raises(DatasetError, match="schema None"):
        read_samples_json_lines(tmp_path / "s.jsonl")
    pq.write_table(pq.read_table(_written(tmp_path)).replace_schema_metadata({}), tmp_path / "bare.parquet")
    with pytest.raises(DatasetError, match=r"schema \(none\)"):
        read_samples_parquet(tmp_path / "bare.parquet")
    with pytest.raises(DatasetError, match="cannot read"):
        read_samples_parquet(tmp_path / "s.jsonl")


def _written(folder):
    write_parquet([sample_row(ONE, None)], folder / "s.parquet", SAMPLES, LEDGER)
    return folder / "s.parquet"


def test_a_row_with_unequal_lengths_is_no_sample() -> None:
    with pytest.raises(DatasetError, match="must be equal"):
        sample_of({**sample_row(ONE, None), "loss_mask": [0]})


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path) -> None:
    target = tmp_path / "s.jsonl"
    write_json_lines([{"a": 1}], target)
    with pytest.raises(TypeError):
        write_json_lines([{"a": 2}, {"b": object()}], target)
    assert json.loads(target.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DatasetError, match="cannot write"):
        write_json_lines([], tmp_path / "file" / "s.jsonl")


def test_a_rollout_for_trl_has_its_prompt_apart_and_tool_output_masked() -> None:
    row = trl.rollout_row(ONE, None)
    assert row["prompt_ids"] == [1, 2]
    assert row["completion_ids"] == [3, 4, 5]
    assert row["env_mask"] == [1, 0, 1]
    assert row["logprobs"] == [-0.5, 0.0, -1.0]


def test_files_from_before_supports_were_written_are_read(tmp_path) -> None:
    row = sample_row(ONE, None)
    for segment in row["segments"]:
        del segment["shaping"], segment["support"], segment["routed_experts"]
    assert sample_of(row) == ONE
    write_json_lines([row], tmp_path / "s.jsonl", SAMPLES)
    assert read_samples_json_lines(tmp_path / "s.jsonl") == (ONE,)
    table = pa.Table.from_pylist([row]).replace_schema_metadata({b"lightning_trainer.schema": b"samples/1"})
    pq.write_table(table, tmp_path / "s.parquet")
    assert read_samples_parquet(tmp_path / "s.parquet") == (ONE,)


@pytest.mark.parametrize("form", [Form.TRL, Form.VERL])
def test_a_form_without_a_place_for_it_refuses_what_was_not_sampled_plainly(tmp_path, form) -> None:
    segments = (ONE.segments[0], replace(ONE.segments[1], support=support_of(9, [[5, 6]])))
    batch = TrainingBatch("math", 1, (replace(ONE, segments=segments),))
    policy = PolicyConfig(name="math", agents=("solver",), model="m")
    with pytest.raises(DatasetError, match=f"sample s was sampled under .* which --format {form} has no place for"):
        write_samples(Build(batch, LEDGER, (), ()), tmp_path / "out", form, policy, with_advantages=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", [Form.TRL, Form.VERL])
def test_a_form_without_a_place_for_it_refuses_images(tmp_path, form) -> None:
    batch = TrainingBatch("math", 1, (replace(ONE, media=(Media("image", "sha256:x", "image/png"),)),))
    policy = PolicyConfig(name="math", agents=("solver",), model="m")
    with pytest.raises(
        DatasetError, match=f"sample s has images or other media, which --format {form} has no place for"
    ):
        write_samples(Build(batch, LEDGER, (), ()), tmp_path / "out", form, policy, with_advantages=False)
    assert list(tmp_path.iterdir()) == []


def test_trls_form_has_one_temperature_as_its_trainer(tmp_path) -> None:
    batch = TrainingBatch("math", 1, (ONE, replace(ONE, sample_id="t", temperature=0.5)))
    policy = PolicyConfig(name="math", agents=("solver",), model="m")
    with pytest.raises(DatasetError, match=r"temperatures 0\.5, 1\.0, and TRL's trainer has one"):
        write_samples(Build(batch, LEDGER, (), ()), tmp_path / "out", Form.TRL, policy, with_advantages=False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "needed"),
    [
        ({"algorithm": "ppo"}, "a critic's values (advantage = 'gae')"),
        ({"algorithm": "starpo_s"}, "a critic's values (advantage = 'gae')"),
        ({"credit": {"scheme": "gae_turns"}}, "a critic's values (credit scheme 'gae_turns')"),
        ({"credit": {"scheme": "gae_tokens"}, "algorithm": "ppo"}, "a critic's values (credit scheme 'gae_tokens')"),
        ({"credit": {"scheme": "gae_bilevel"}}, "a critic's values (credit scheme 'gae_bilevel')"),
        (
            {"algorithm": {"advantage": "optimal_token_baseline"}},
            "the policy's probabilities (advantage = 'optimal_token_baseline')",
        ),
        ({"algorithm": "rloo"}, "the divergence from a reference model (kl_reward_coef = 0.03)"),
        ({"algorithm": "reinforce_plus_plus"}, "the divergence from a reference model (kl_reward_coef = 0.01)"),
    ],
)
def test_advantages_that_only_a_trainer_can_work_out_are_refused_in_a_sentence(tmp_path, settings, needed) -> None:
    policy = PolicyConfig.model_validate({"name": "math", "agents": ["solver"], "model": "m", **settings})
    build = Build(TrainingBatch("math", 1, (ONE,)), LEDGER, (), ())
    for form, asked in ((Form.JSONL, True), (Form.VERL, False)):
        with pytest.raises(DatasetError, match=re.escape(f"policy 'math' need {needed}, which only its trainer has")):
            write_samples(build, tmp_path / "out", form, policy, with_advantages=asked)
    assert list(tmp_path.iterdir()) == []
    assert write_samples(build, tmp_path / "out", Form.JSONL, policy, with_advantages=False) == 1
