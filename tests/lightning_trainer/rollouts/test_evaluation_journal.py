"""An evaluation that was interrupted goes on from its journal, if it is still the same evaluation."""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import lightning_instrumentation as lt
import pytest

from lightning_trainer.cli.rollouts import Options, check_purpose
from lightning_trainer.environments.protocol import Environment, Observation, Step
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import AttemptEnded, Event, Runner
from lightning_trainer.rollouts.daemon_client import DaemonClient
from lightning_trainer.rollouts.environment.runner import EnvironmentRunner
from lightning_trainer.rollouts.task_file import FileTask

ENDPOINT = "http://127.0.0.1:9"
TASKS = [FileTask(name, {"question": name}) for name in "abcd"]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """The live version of each policy, which a test may change."""
    versions = {"p": 3}
    monkeypatch.setattr(DaemonClient, "wait_until_there", lambda _: None)
    monkeypatch.setattr(DaemonClient, "live_versions", lambda _: dict(versions))
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path / "spool")
    yield versions
    lt.shutdown(0)


class Agent:
    """Earns 1 at every task; what it does otherwise is up to the test."""

    def __init__(self, at: dict[str, Callable[[], object]] | None = None) -> None:
        self.at = at or {}
        self.tried: list[str] = []

    def __call__(self, task: FileTask) -> float:
        self.tried.append(task.id)
        self.at.get(task.id, lambda: None)()
        return 1.0


def fail() -> None:
    raise RuntimeError("the tool is away")


def evaluate(agent: Agent, journal: Path, tasks: Sequence = TASKS, *, stage="held-out", run="r") -> list[AttemptEnded]:
    # One at a time: the order of the attempts is that of the tasks.
    return Runner("p", agent, endpoint=ENDPOINT, concurrency=1, run=run).evaluate(tasks, stage=stage, journal=journal)


def cut_off(journal: Path, entries: int) -> None:
    """Leave what a process wrote that was killed as it wrote one more."""
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: 1 + entries]) + lines[1 + entries][:20])


def test_what_has_ended_is_not_made_again_and_counts(live, tmp_path: Path, caplog) -> None:
    journal = tmp_path / "held-out.jsonl"
    first = evaluate(Agent(), journal)
    cut_off(journal, 3)
    agent = Agent()
    ended = evaluate(agent, journal)
    assert agent.tried == ["d"]
    assert ended[:3] == first[:3]
    assert [one.task_id for one in ended] == [*"abcd"]
    assert [one.reward for one in ended] == [1.0] * 4
    assert f"held-out: 3 of 4 were there already, in {journal}" in caplog.text
    agent = Agent()
    assert evaluate(agent, journal) == ended
    assert agent.tried == []


def test_attempts_of_the_journal_are_events_too_so_that_a_bar_counts_them(live, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    evaluate(Agent(), journal)
    cut_off(journal, 3)
    events: list[Event] = []
    ended = Runner("p", Agent(), endpoint=ENDPOINT, concurrency=1, run="r", on_event=events.append).evaluate(
        TASKS, stage="held-out", journal=journal
    )
    assert events == ended


def test_a_line_that_cannot_be_read_is_left_out_and_what_follows_it_counts(live, tmp_path: Path, caplog) -> None:
    journal = tmp_path / "journal"
    evaluate(Agent(), journal)
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join([*lines[:2], bytes(9) + lines[2], *lines[3:]]))
    agent = Agent()
    evaluate(agent, journal)
    assert agent.tried == ["b"]
    assert f"lines of the journal {journal} that cannot be read are left out: 1" in caplog.text
    evaluate(agent, journal)
    assert agent.tried == ["b"]


def test_a_failed_attempt_is_made_again(live, tmp_path: Path) -> None:
    evaluate(Agent({"b": fail}), tmp_path / "journal")
    agent = Agent()
    ended = evaluate(agent, tmp_path / "journal")
    assert agent.tried == ["b"]
    assert [one.error for one in ended] == [None] * 4


def test_another_version_is_another_evaluation(live, tmp_path: Path, caplog) -> None:
    evaluate(Agent(), tmp_path / "journal")
    live["p"] = 4
    agent = Agent()
    evaluate(agent, tmp_path / "journal")
    assert agent.tried == [*"abcd"]
    assert "is of p@v3, and p@v4 answers now: every task is tried anew" in caplog.text
    evaluate(agent, tmp_path / "journal")
    assert agent.tried == [*"abcd"]


def test_attempts_by_a_version_that_came_in_between_are_said_and_made_again(live, tmp_path: Path, caplog) -> None:
    # As when a version goes live during an evaluation and is rolled back before it goes on.
    evaluate(Agent({"c": lambda: live.update(p=4)}), tmp_path / "journal")
    assert caplog.text.count("is of p@v3, and p@v4 answers by now: its attempts are not kept, and the results are") == 1
    live["p"] = 3
    agent = Agent()
    evaluate(agent, tmp_path / "journal")
    assert agent.tried == ["c", "d"]


def test_a_daemon_that_does_not_say_which_version_answers_ends_no_evaluation(live, tmp_path, monkeypatch, caplog):
    asked = []

    def refuse(_: object) -> dict[str, int]:
        asked.append("versions")
        raise LightningError("the daemon answered 500: no disk")

    agent = Agent({"c": lambda: monkeypatch.setattr(DaemonClient, "live_versions", refuse)})
    ended = evaluate(agent, tmp_path / "journal")
    assert [one.reward for one in ended] == [1.0] * 4
    said = f"what ends from here on is not in the journal {tmp_path / 'journal'}: the daemon answered 500: no disk"
    assert caplog.text.count(said) == 1
    assert "could not be run" not in caplog.text
    assert asked == ["versions"], "one that is away is not waited for after each attempt"
    monkeypatch.setattr(DaemonClient, "live_versions", lambda _: dict(live))
    agent = Agent()
    evaluate(agent, tmp_path / "journal")
    assert agent.tried == ["c", "d"]


def test_an_id_may_be_something_else_than_a_text(live, tmp_path: Path) -> None:
    tasks = [SimpleNamespace(id=one) for one in (UUID(int=1), 2)]
    first = evaluate(Agent(), tmp_path / "journal", tasks)
    agent = Agent()
    assert evaluate(agent, tmp_path / "journal", tasks) == first
    assert agent.tried == []
    assert [one.task_id for one in first] == [UUID(int=1), 2]


class Image:
    """As Pillow's, which says where it is in memory."""


@pytest.mark.parametrize(
    "content", [lambda: {"image": Image()}, lambda: {1: "x", "y": {Image}}, lambda: {"at": [date(2026, 1, 2)]}]
)
def test_a_task_with_something_in_it_that_is_no_json_is_the_same_at_the_next_start(live, tmp_path, content) -> None:
    kept = [{"id": "a", **content()}]  # so that no other is where it was
    evaluate(Agent(), tmp_path / "journal", kept)
    agent = Agent()
    evaluate(agent, tmp_path / "journal", [{"id": "a", **content()}])
    assert agent.tried == []


def test_another_task_of_the_same_name_is_tried_and_said(live, tmp_path: Path, caplog) -> None:
    evaluate(Agent(), tmp_path / "journal", [{"id": "a", "at": date(2026, 1, 2)}, *TASKS[1:]])
    agent = Agent()
    evaluate(agent, tmp_path / "journal", [{"id": "a", "at": date(2026, 1, 3)}, *TASKS[1:]])
    assert agent.tried == ["a"]
    assert f"held-out: tasks of another content than in {tmp_path / 'journal'}, which are tried anew: 1" in caplog.text


def test_another_task_of_the_same_name_is_tried_and_one_that_is_there_twice_is_tried_twice(live, tmp_path) -> None:
    evaluate(Agent(), tmp_path / "journal")
    agent = Agent()
    evaluate(agent, tmp_path / "journal", [FileTask("a", {"question": "another"}), TASKS[1], TASKS[1]])
    assert agent.tried == ["a", "b"]


@pytest.mark.parametrize("other", [{"stage": "before"}, {"run": "another"}])
def test_the_journal_of_another_evaluation_is_refused(live, tmp_path: Path, other) -> None:
    evaluate(Agent(), tmp_path / "journal")
    before = (tmp_path / "journal").read_bytes()
    with pytest.raises(LightningError, match=r"is of another evaluation .* name another file to begin anew"):
        evaluate(Agent(), tmp_path / "journal", **other)
    assert (tmp_path / "journal").read_bytes() == before


@pytest.mark.parametrize("content", ["notes\n", "[1]\n", "no line"])
def test_a_file_of_something_else_is_left_alone(live, tmp_path: Path, content: str) -> None:
    (tmp_path / "notes").write_text(content)
    with pytest.raises(LightningError, match="or of none"):
        evaluate(Agent(), tmp_path / "notes")
    assert (tmp_path / "notes").read_text() == content


def test_a_file_that_cannot_be_written_is_said(live, tmp_path: Path) -> None:
    with pytest.raises(LightningError, match=r"the journal .* cannot be used: .*Is a directory"):
        evaluate(Agent(), tmp_path)


def test_a_journal_is_of_one_process_at_a_time(live, tmp_path: Path) -> None:
    journal, refused = tmp_path / "journal", []

    def begin_another() -> None:
        with pytest.raises(LightningError, match="another evaluation is writing the journal") as error:
            evaluate(Agent(), journal)
        refused.append(error)

    evaluate(Agent({"a": begin_another}), journal)
    assert len(refused) == 1


class Echo(Environment):
    """Ends with the first answer."""

    version = "1"

    def reset(self, *args: object) -> Observation:
        return Observation("say something")

    def step(self, action: object) -> Step:
        return Step(Observation(""), 1.0, True)


def test_an_environments_evaluation_is_of_the_named_version_and_of_the_agents_settings(live, tmp_path: Path) -> None:
    def head(policy: str, **settings: object) -> dict:
        options = {"api_key": "a secret", **settings}
        runner = EnvironmentRunner(Echo, policy=policy, agent_options=options, endpoint=ENDPOINT, run="r")
        path = tmp_path / f"{policy}-{len(settings)}"
        with runner:
            runner.evaluate([], stage="before", journal=path)
        return json.loads(path.read_text().splitlines()[0])

    named, live_one, told = head("p@v1"), head("p"), head("p", instructions="be brief")
    assert (named["versions"], live_one["versions"]) == ({"p": 1}, {"p": 3})
    assert told["evaluation"] != live_one["evaluation"]
    assert "a secret" not in str([named, live_one, told])


def test_a_journal_without_an_evaluation_is_refused_in_a_sentence() -> None:
    options = Options(("true",), None, "p", 3, None, None, None, 1, 1.0, 0, 0, journal=Path("journal"))
    with pytest.raises(ConfigError, match="--journal keeps what --evaluate has done"):
        check_purpose(options)
