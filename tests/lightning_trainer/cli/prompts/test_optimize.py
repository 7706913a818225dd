"""What ``prompts optimize`` says while it searches, and where its daemon is."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from lightning_instrumentation.prompts.version import PromptVersion

from lightning_trainer.cli.prompts import optimize
from lightning_trainer.cli.rollouts import shown
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts import AttemptEnded, PromptOptimizer
from lightning_trainer.rollouts.prompts.candidates import Candidate, CandidateTried, Optimized
from lightning_trainer.rollouts.prompts.client import Spent
from lightning_trainer.rollouts.prompts.journal import OtherSearchError

BASE = CandidateTried("planner@v0, writer@v0", None, None, 0.25, 12, 3, True, 88)
LOST = CandidateTried("planner@v1, writer@v0", BASE.candidate, "reflect", 0.0, 3, 0, False, 82)
KEPT = CandidateTried("planner@v0, writer@v2", BASE.candidate, "examples", 0.75, 12, 0, True, 64)


def told(*events: CandidateTried | AttemptEnded, journal: Path, end: BaseException | None = None) -> None:
    console = TerminalConsole()
    with shown(console, 1, 100) as show:
        narration = optimize._Narration(console, show, journal)
        with narration.of_an_end(PromptOptimizer("clerk", lambda task: 1.0, endpoint="http://127.0.0.1:9")):
            for event in events:
                narration(event)
            raise end or KeyboardInterrupt


@pytest.fixture
def journal(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("j.jsonl").write_text("{}\n")
    return Path("j.jsonl")


def test_an_interrupted_search_says_what_is_best_so_far_and_which_attempts_failed(capsys, journal):
    with pytest.raises(KeyboardInterrupt):
        told(BASE, LOST, KEPT, journal=journal)
    said = capsys.readouterr().out.splitlines()
    assert said == [
        "planner@v0, writer@v0, which the program has: 0.250 at 12 validation tasks, 3 failed or without a reward",
        "planner@v1, writer@v0 by reflect from planner@v0, writer@v0: 0.000 at 3 tasks, not better there; "
        "82 attempts left",
        "planner@v0, writer@v2 by examples from planner@v0, writer@v0: 0.750 at 12 validation tasks, kept; "
        "64 attempts left",
        "best so far: planner@v0, writer@v2, 0.750 at 12 validation tasks; to serve it: "
        "lightning-trainer prompts use planner@v0, lightning-trainer prompts use writer@v2",
        "the same command goes on with the search from j.jsonl",
    ]


def test_a_search_that_has_found_nothing_says_nothing_of_a_best_one(capsys, journal):
    with pytest.raises(KeyboardInterrupt):
        told(BASE, LOST, journal=journal)
    assert "best so far" not in capsys.readouterr().out


def test_a_search_that_has_not_begun_or_must_begin_anew_does_not_say_that_it_goes_on(capsys, journal):
    with pytest.raises(KeyboardInterrupt):
        told(journal=journal)
    journal.write_text("")
    with pytest.raises(KeyboardInterrupt):
        told(BASE, journal=journal)
    assert "goes on" not in capsys.readouterr().out


def test_a_search_that_is_another_by_now_does_not_say_that_it_goes_on(capsys, journal):
    ended = AttemptEnded("validation", None, "t", 1.0, 0.0, None, "a")
    with pytest.raises(OtherSearchError):
        told(ended, journal=journal, end=OtherSearchError("another default"))
    assert "goes on" not in capsys.readouterr().out


class Found:
    """A search that has found ``v2``, or is interrupted."""

    found: Any = None

    def __init__(self, names: Any, program: Any, *, on_event: Any, **options: Any) -> None:
        self.on_event = on_event
        self.spent = Spent(3, 12_345, 678)

    def optimize(self, tasks: Any, **options: Any) -> Optimized:
        self.on_event(CandidateTried("clerk@v0", None, None, 0.25, 4, 0, True, 88))
        if self.found is None:
            raise KeyboardInterrupt
        return self.found

    def use(self, candidate: Candidate) -> None:
        pass


def found(held_out: Any = None, **spent: int) -> Optimized:
    base = Candidate({"clerk": PromptVersion(0, "v0")}, {"a": 0.0, "b": 0.5})
    best = Candidate({"clerk": PromptVersion(2, "v2")}, {"a": 0.5, "b": 1.0}, 0)
    return Optimized(base, best, [base, best], 45, held_out, Spent(**spent))


SPENT = {"calls": 3, "input_tokens": 12_345, "output_tokens": 678}
BETTER = {str(task): 0.0 for task in range(8)}, {str(task): 1.0 for task in range(8)}


def test_what_the_writing_model_was_asked_is_said_where_it_was_asked(capsys, journal, monkeypatch):
    Path("tasks.jsonl").write_text('{"id": "1"}\n')
    monkeypatch.setattr(optimize, "PromptOptimizer", Found)
    monkeypatch.setattr(Found, "found", found(**SPENT))
    search(Path(), "http://127.0.0.1:9")
    line = "the texts took 3 calls of the model that writes them: 12,345 tokens in, 678 out"
    assert capsys.readouterr().out.splitlines()[1:] == [
        "best: clerk@v2, 0.750 at the validation tasks that it was chosen by, where clerk@v0 has 0.250 (2 kept "
        "candidates, 45 attempts)",
        line,
        "to serve it: lightning-trainer prompts use clerk@v2 --endpoint http://127.0.0.1:9",
    ]
    monkeypatch.setattr(Found, "found", found())
    search(Path(), "http://127.0.0.1:9")
    assert "tokens" not in capsys.readouterr().out, "examples ask no model"
    monkeypatch.setattr(Found, "found", None)
    with pytest.raises(KeyboardInterrupt):
        search(Path(), "http://127.0.0.1:9")
    assert line in capsys.readouterr().out, "also of a search that is interrupted"


def test_what_a_search_has_found_is_one_json_document(capsys, journal, monkeypatch):
    Path("tasks.jsonl").write_text('{"id": "1"}\n')
    Path("test.jsonl").write_text('{"id": "2"}\n')
    monkeypatch.setattr(optimize, "PromptOptimizer", Found)
    monkeypatch.setattr(Found, "found", found(BETTER, **SPENT))
    search(Path(), "http://127.0.0.1:9", as_json=True, use=True, held_out=Path("test.jsonl"))
    said = capsys.readouterr()
    document = json.loads(said.out)
    low, high = document["held_out"].pop("interval")
    assert 0 < low < high <= 1
    assert document == {
        "base": "clerk@v0",
        "best": "clerk@v2",
        "candidates": [
            {"name": "clerk@v0", "versions": {"clerk": 0}, "parent": None, "mean": 0.25},
            {"name": "clerk@v2", "versions": {"clerk": 2}, "parent": "clerk@v0", "mean": 0.75},
        ],
        "attempts": 45,
        "held_out": {"tasks": 8, "before": 0.0, "now": 1.0, "difference": 1.0},
        "served": True,
        "spent": SPENT,
    }
    assert "clerk@v0, which the program has" in said.err
    assert "it is served from now on" in said.err
    monkeypatch.setattr(Found, "found", found())
    search(Path(), "http://127.0.0.1:9", as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["held_out"], document["served"], document["spent"]["calls"]) == (None, False, 0)


def search(folder: Path, endpoint: str | None, *, as_json: bool = False, **options: Any) -> None:
    tasks = folder / "tasks.jsonl"
    options = {"validation": None, "held_out": None, "use": False, "journal": None, **options}
    optimize.optimize_prompts(
        ["clerk"],
        ("true",),
        optimize.Search(tasks=tasks, attempts=10, minibatch=3, perfect=1.0, seed=0, **options),
        config=None,
        endpoint=endpoint,
        agent=None,
        concurrency=1,
        timeout_s=1.0,
        as_json=as_json,
    )


def test_the_usual_configuration_says_where_the_daemon_is_unless_an_endpoint_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("LIGHTNING_ENDPOINT", "LIGHTNING_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    (tmp_path / "lightning.toml").write_text(
        '[daemon]\nport = 0\nstate_dir = "nothing"\ntoken = "of-this-daemon-alone"\n'
    )
    with pytest.raises(ConfigError, match=r"no daemon runs on .*nothing.*serve --config lightning.toml"):
        search(tmp_path, None)
    os.environ.pop("LIGHTNING_TOKEN", None)
    with pytest.raises(LightningError, match="cannot read the tasks"):
        search(tmp_path, "http://127.0.0.1:9")
    assert "LIGHTNING_TOKEN" not in os.environ, "one daemon's token is not left to the programs of another"
