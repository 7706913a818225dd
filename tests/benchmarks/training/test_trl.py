"""The section ``trl`` of ``benchmarks/training``: both sides have the same tool, and what is written down adds up.

The section itself trains two real models for minutes and is run by hand.
"""

import dataclasses
import json
import math
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "examples" / "calculator"))

from agent import calculator as ours  # noqa: E402  # pyright: ignore[reportMissingImports]

from benchmarks.training.trl import _before_question, _next_to, _rows, _searched  # noqa: E402
from benchmarks.training.trl_sides.calculator import calculator as theirs  # noqa: E402
from benchmarks.training.trl_sides.ours import _configuration  # noqa: E402
from benchmarks.training.trl_sides.record import Plan, Record, Step  # noqa: E402
from lightning_trainer.config import Config  # noqa: E402

PLAN = Plan("model", str(ROOT / "examples" / "calculator"), [], run_steps=3)
EXPRESSION = st.one_of(st.text("0123456789.+-*/() ", max_size=90), st.text(max_size=20))


@given(EXPRESSION)
def test_both_tools_say_the_same(expression):
    assert theirs(expression) == ours.func(expression)


def test_a_tool_that_is_right():
    assert theirs("15 * 20 + 50") == ours.func("15 * 20 + 50") == "350"


def test_the_messages_before_a_question_are_those_the_agent_sends():
    from agent import _examples  # pyright: ignore[reportMissingImports]

    sent = _before_question()[1:]
    assert [message["content"] for message in sent] == [message.content for message in _examples()]
    calls = [call["args"] for message in _examples() for call in getattr(message, "tool_calls", ())]
    mine = [call["function"]["arguments"] for message in sent for call in message.get("tool_calls", ())]
    assert mine == calls != []


def test_a_step_of_ours_has_as_many_samples_as_one_of_theirs():
    policy = Config.model_validate(tomllib.loads(_configuration(PLAN))).only_policy
    assert policy.group_size * policy.groups_per_step == PLAN.groups * PLAN.size == 64
    assert (policy.optimizer.lr, policy.optimizer.warmup_steps) == (PLAN.lr, 0)


def _record(folder: Path, plan: Plan, seconds: list[float], partial: int | None = None) -> Record:
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(dataclasses.asdict(plan)))
    record = Record(folder)
    for number, taken in enumerate(seconds, 1):
        record.step(Step(number, taken, 2 * taken, 0.5, 1.0, number == partial))
    return Record(folder)  # as a later process reads it


def test_an_interrupted_step_has_no_part_in_the_median(tmp_path):
    record = _record(tmp_path / "ours", PLAN, [10.0, 1.0, 20.0], partial=2)
    assert not record.done  # one more is made in its place
    assert record.median(lambda step: step.seconds) == 15.0
    assert record.seconds_until(2) == 25.0  # its time unknown, it counts as the median


def test_a_step_that_is_made_again_counts_once(tmp_path):
    record = _record(tmp_path / "trl", PLAN, [10.0, 30.0])
    record.step(Step(2, 50.0, 1.0, 0.5, 1.0))
    assert [step.seconds for step in Record(tmp_path / "trl").steps] == [10.0, 30.0]
    assert not record.done


def test_the_rows_are_ratios_of_what_was_recorded(tmp_path):
    plan = dataclasses.replace(PLAN, run_steps=26, target=0.9)
    fast, slow = _record(tmp_path / "ours", plan, [2.0, 2.0, 4.0]), _record(tmp_path / "trl", plan, [12.0, 12.0, 12.0])
    fast.evaluated(2, 0.95)
    slow.evaluated(2, 0.5)
    rows = {row.what: row for row in _rows(fast, slow)}
    step = rows["a step of 64 samples: wall-clock, TRL over ours"]
    assert (step.figure, step.met) == (6.0, True)
    score = rows["to 90% of 96 held-out tasks: TRL over ours"]
    assert score.figure is not None
    assert math.isclose(score.figure, 36 / 4)
    assert "did not get there" in score.note
    assert rows["to 90% of 96 held-out tasks: TRL"].figure is None


def test_a_step_that_was_ended_at_its_limit_is_a_bound_and_says_so(tmp_path):
    ours, theirs = _record(tmp_path / "ours", PLAN, [2.0, 2.0, 2.0]), _record(tmp_path / "trl", PLAN, [])
    theirs.step(Step(1, 20.0, 40.0, 0.0, 1.0, unfinished=True))
    ratio = _rows(ours, theirs)[0]
    assert (ratio.figure, ratio.met, ratio.note) == (10.0, True, "at least: its step was ended there")


def test_the_other_side_ends_once_it_is_behind_for_certain(tmp_path):
    plan = dataclasses.replace(PLAN, run_steps=26, target=0.9)
    ours = _record(tmp_path / "ours", plan, [2.0, 2.0, 2.0])
    assert _next_to(plan, ours) == plan  # nothing to be behind of
    ours.evaluated(2, 0.95)
    record = _record(tmp_path / "trl", _next_to(plan, ours), [20.0])
    assert not record.done
    record.step(Step(2, 2.0, 1.0, 0.5, 1.0))
    assert record.done
    score = next(row for row in _rows(ours, record) if row.what.endswith("tasks: TRL over ours"))
    assert score.met


def test_where_ours_does_not_get_there_nothing_is_claimed(tmp_path):
    plan = dataclasses.replace(PLAN, run_steps=26, target=0.9)
    rows = _rows(_record(tmp_path / "ours", plan, [2.0]), _record(tmp_path / "trl", plan, [12.0]))
    score = next(row for row in rows if row.what.endswith("tasks: TRL over ours"))
    assert score.figure is None
    assert score.met is None


def test_the_other_side_gets_its_best_of_what_is_searched_and_all_is_said(tmp_path):
    seconds, rewards = {4: 30.0, 8: 20.0, 16: 40.0}, {2e-5: 0.2, 5e-5: 0.3, 1e-4: 0.5}
    made: list[Plan] = []

    def peer(plan: Plan, name: str) -> Record:
        made.append(plan)
        record = _record(tmp_path / name, plan, [])
        for number in range(1, plan.run_steps + 1):
            reward = rewards[plan.lr] if number == plan.run_steps else 0.1
            record.step(Step(number, seconds[plan.micro_batch], 1.0, reward, 1.0))
        return record

    best, _, rows = _searched(PLAN, peer, quick=False)
    assert (best.micro_batch, best.lr) == (8, 1e-4)
    assert [plan.micro_batch for plan in made] == [4, 8, 16, 8, 8, 8]
    assert dataclasses.replace(best, micro_batch=PLAN.micro_batch, lr=PLAN.lr) == PLAN
    said = {row.what.removeprefix("searched for TRL: "): row.figure for row in rows}
    assert said["micro-batches of 16"] == 40.0
    assert said["learning rate 2e-05"] == pytest.approx(0.15)
    assert rows[-1].note == "micro-batches of 8, learning rate 0.0001"


def test_a_quick_race_searches_what_a_steps_time_depends_on(tmp_path):
    best, fastest, rows = _searched(
        PLAN, lambda plan, name: _record(tmp_path / name, plan, [9.0 / plan.micro_batch]), quick=True
    )
    assert (best.micro_batch, best.lr) == (fastest.plan.micro_batch, PLAN.lr) == (8, PLAN.lr)
    assert "not searched" in rows[-1].note


@pytest.mark.parametrize("success", [0.89, 0.9])
def test_done_is_the_target_or_the_last_step(tmp_path, success):
    record = _record(tmp_path / "ours", dataclasses.replace(PLAN, target=0.9), [1.0])
    record.evaluated(1, success)
    assert record.done == (success == 0.9)
