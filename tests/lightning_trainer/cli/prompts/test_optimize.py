"""What ``prompts optimize`` says while it searches, and where its daemon is."""

import os
from pathlib import Path

import pytest

from lightning_trainer.cli.prompts import optimize
from lightning_trainer.cli.rollouts import shown
from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.errors import ConfigError, LightningError
from lightning_trainer.rollouts.prompts.candidates import CandidateTried

BASE = CandidateTried("planner@v0, writer@v0", None, None, 0.25, 12, 3, True, 88)
LOST = CandidateTried("planner@v1, writer@v0", BASE.candidate, "reflect", 0.0, 3, 0, False, 82)
KEPT = CandidateTried("planner@v0, writer@v2", BASE.candidate, "examples", 0.75, 12, 0, True, 64)


def told(*events: CandidateTried, journal: Path) -> None:
    console = TerminalConsole()
    with shown(console, 1, 100) as show:
        narration = optimize._Narration(console, show, journal)
        with narration.of_an_end():
            for event in events:
                narration(event)
            raise KeyboardInterrupt


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


def search(folder: Path, endpoint: str | None) -> None:
    tasks = folder / "tasks.jsonl"
    optimize.optimize_prompts(
        ["clerk"],
        ("true",),
        optimize.Search(tasks, 10, None, None, False, 3, 1.0, 0, None),
        config=None,
        endpoint=endpoint,
        agent=None,
        concurrency=1,
        timeout_s=1.0,
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
