"""Tasks from a file, and which of them a step takes."""

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.errors import LightningError, MissingExtraError
from lightning_trainer.rollouts import Runner
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.task_file import Epochs, FileTask, read_tasks


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_id_names_a_task_or_else_a_digest_of_what_it_says(tmp_path: Path) -> None:
    path = write(tmp_path, '{"id": 7, "q": "a"}\n\n{"q": "b"}\n')
    # sha256 of {"q": "b"}
    assert read_tasks(path).tasks == (FileTask("7", {"id": 7, "q": "a"}), FileTask("task-141f76ad3b73", {"q": "b"}))


def test_a_task_keeps_its_name_in_an_edited_file(tmp_path: Path) -> None:
    # Before: a line below a removed one took another's name, and evaluations compared different questions.
    before = read_tasks(write(tmp_path, '{"q": "bad"}\n{"q": "b", "a": 1}\n{"q": "c"}\n')).tasks
    after = read_tasks(write(tmp_path, '{"a":1,"q":"b"}\n{"q": "d"}\n{"q": "c"}\n')).tasks
    assert [before[1].id, before[2].id] == [after[0].id, after[2].id]
    assert len({task.id for task in (*before, *after)}) == 4


@pytest.mark.parametrize("inside", ["\u2028", "\u2029", "\u0085"])
def test_only_a_line_feed_ends_a_line(tmp_path: Path, inside: str) -> None:
    path = write(tmp_path, f'{{"q": "a{inside}b"}}\r\n{{"q": "c"}}\n')
    assert [task.fields["q"] for task in read_tasks(path).tasks] == [f"a{inside}b", "c"]


def test_the_same_task_twice_is_two(tmp_path: Path) -> None:
    one, two, three = (task.id for task in read_tasks(write(tmp_path, '{"id": null}\n' * 3)).tasks)
    assert (two, three) == (f"{one}-2", f"{one}-3")


def test_a_byte_order_mark_is_no_part_of_the_first_task(tmp_path: Path) -> None:
    assert read_tasks(write(tmp_path, '\ufeff{"id": "a"}\n')).tasks == (FileTask("a", {"id": "a"}),)


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_lines_may_end_as_on_any_system(tmp_path: Path, line_end: str) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(line_end.join(['{"id": "a"}', '{"id": "b"}', ""]).encode())
    assert [task.id for task in read_tasks(path).tasks] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no task in .*; write one JSON object a line"),
        ("{", r"tasks.jsonl:1 is not JSON"),
        ("{}\n[1]\n", r"tasks.jsonl:2 is '\[1\]'; a task is one JSON object a line"),
        ('{"id": "a"}\n{"id": "a"}\n', r"tasks.jsonl:2: there is another task with the id 'a'"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(LightningError, match=sentence):
        read_tasks(write(tmp_path, text))


def test_a_file_that_is_not_there_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LightningError, match="cannot read the tasks"):
        read_tasks(tmp_path / "none.jsonl")


def write_parquet(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "tasks"  # a pipe has no better name
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_rows_of_parquet_are_tasks_as_lines_are(tmp_path: Path) -> None:
    rows = [{"id": "a", "prompt": [{"role": "user", "content": "2+2?"}], "level": 1}, {"id": None, "prompt": []}]
    lines = write(tmp_path, "".join(f"{json.dumps({'level': None, **row})}\n" for row in rows))
    assert read_tasks(write_parquet(tmp_path, rows)).tasks == read_tasks(lines).tasks


def test_parquet_that_cannot_be_used_is_refused_in_a_sentence(tmp_path: Path) -> None:
    picture = {"bytes": b"\x89PNG", "path": "cat.png"}
    with pytest.raises(LightningError, match=r"tasks: row 2: the column 'image' has no form in JSON, .*bytes"):
        read_tasks(write_parquet(tmp_path, [{"image": None}, {"image": picture}]))
    with pytest.raises(LightningError, match="tasks: row 2: there is another task with the id '1'"):
        read_tasks(write_parquet(tmp_path, [{"id": 1}, {"id": 1}]))
    with pytest.raises(LightningError, match=r"there is no task in .*tasks"):
        read_tasks(write_parquet(tmp_path, []))
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and no more")
    with pytest.raises(LightningError, match=r"cannot read the tasks .*broken.parquet as Parquet"):
        read_tasks(broken)


def test_parquet_without_its_package_names_what_to_install(tmp_path: Path, monkeypatch) -> None:
    path = write_parquet(tmp_path, [{"q": "a"}])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtraError, match=r"lightning-trainer\[dataset\]"):
        read_tasks(path)


@given(count=st.integers(1, 30), per_step=st.integers(1, 8), seed=st.integers(0, 3), epochs=st.integers(1, 3))
def test_every_epoch_takes_a_task_at_most_once_and_leaves_less_than_a_step(count, per_step, seed, epochs) -> None:
    tasks = [FileTask(str(number), {}) for number in range(count)]
    if count < per_step:
        with pytest.raises(LightningError, match=f"there are {count} tasks"):
            Epochs(tasks, per_step=per_step, seed=seed)
        return
    steps = count // per_step
    for epoch in range(epochs):
        # A new object each time: an interrupted run starts anywhere.
        taken = [Epochs(tasks, per_step=per_step, seed=seed)(epoch * steps + step + 1) for step in range(steps)]
        assert all(len(step) == per_step for step in taken)
        met = Counter(task.id for step in taken for task in step)
        assert set(met.values()) == {1}
        assert count - len(met) < per_step


def test_seeds_and_runs_of_one_name_differ() -> None:
    tasks = [FileTask(str(number), {}) for number in range(20)]
    assert Epochs(tasks, per_step=20, seed=0)(1) != Epochs(tasks, per_step=20, seed=0)(1, run=2)
    assert Epochs(tasks, per_step=20, seed=0)(1) != Epochs(tasks, per_step=20, seed=1)(1)
    assert Epochs(tasks, per_step=20, seed=0)(1) != Epochs(tasks, per_step=20, seed=0)(2)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            ["2+2"],
            r"the task '2\+2' is a str without an id; give a dict, or an object with an attribute `id`, as df\.to",
        ),
        ([*pd.DataFrame({"q": ["a"]}).iterrows()], "is a tuple without an id"),
        ([pd.Series({"q": "a"})], "is a Series without an id"),
        ([SimpleNamespace(id=None)], r"the task namespace\(id=None\) is a SimpleNamespace without an id"),
        (pd.DataFrame({"q": ["a"]}), r"the tasks are a DataFrame; give a list of tasks, as df\.to_dict\('records'\)"),
        ("2+2", "the tasks are a str; give a list"),
        ({"id": "a"}, "the tasks are a dict; give a list"),
        (None, "the tasks are a NoneType; give a list"),
    ],
    ids=["text", "iterrows", "Series", "no id", "DataFrame", "one text", "one task", "nothing"],
)
def test_what_is_no_task_is_refused_in_a_sentence(given: Any, sentence: str, monkeypatch) -> None:
    """Before, it was an AttributeError or TypeError with a traceback."""
    monkeypatch.setattr(DaemonClient, "wait_until_there", lambda _: None)
    runner = Runner("p", lambda task: 1.0, endpoint="http://127.0.0.1:9")
    for refused in (partial(runner.evaluate, given, stage="e"), partial(runner.record, given, attempts=1)):
        with pytest.raises(LightningError, match=sentence):
            refused()


def test_tasks_to_train_on_come_from_a_function(monkeypatch) -> None:
    monkeypatch.setattr(DaemonClient, "wait_until_there", lambda _: None)
    tasks: Any = [{"id": "a"}]
    with pytest.raises(
        LightningError, match=r"are a list; give a function .* train\(lambda step: tasks, steps=\.\.\.\)"
    ):
        Runner("p", lambda task: 1.0, endpoint="http://127.0.0.1:9").train(tasks, steps=1)
