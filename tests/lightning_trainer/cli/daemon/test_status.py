"""``lightning-trainer status`` shows each replica of an engine and who shares a trainer, where there are several."""

import json
import re
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.cli.daemon import status as shown
from lightning_trainer.serving.affinity import AffinityCounts
from lightning_trainer.serving.replicas import ReplicasStatus
from lightning_trainer.serving.supervisor import EngineState, EngineStatus

READY = EngineStatus(EngineState.READY, 4711, {"math": 3}, 0, 20.0, None)
GONE = EngineStatus(EngineState.RESTARTING, None, {}, 2, 20.0, "the engine ended: it was killed (SIGKILL)")

NONE_YET = AffinityCounts()
STORE = {"note": None, "write_failure": None}


def engine(*replicas: EngineStatus, conversations: AffinityCounts = NONE_YET) -> dict[str, Any]:
    first = replicas[0]
    return asdict(
        ReplicasStatus(
            *(first.state, first.pid, first.versions, 0, first.startup_s, None),
            replicas=tuple(replicas),
            conversations=conversations,
        )
    )


@pytest.fixture
def show(tmp_path: Path, monkeypatch, capsys):
    """``show(engine, **more)``: what is printed of a policy that this engine serves."""
    path = tmp_path / "lightning.toml"
    path.write_text('[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\n')
    phase = {"phase": "collecting", "detail": "", "steps_done": 3, "live_version": 3}
    policy = {**phase, "rows": [], "warnings": {}, "problems": [], "store": STORE}
    monkeypatch.setattr(shown, "running_daemon", lambda config: "http://127.0.0.1:8321")

    def show(engine: dict[str, Any], **more: Any) -> str:
        monkeypatch.setattr(shown, "_ask", lambda url, config, names: {"math": {**policy, "engine": engine, **more}})
        shown.status(path, None, as_json=False, watch_s=None)
        return " ".join(capsys.readouterr().out.split())

    return show


def test_each_replica_is_shown_with_its_restarts_and_why(show):
    said = show(engine(READY, GONE))
    assert "serving math@v3" in said
    assert "engine 1: ready, process 4711" in said
    assert "engine 2: restarting, restarts: 2, the last because the engine ended: it was killed (SIGKILL)" in said


def test_what_the_engine_serves_is_named_where_another_version_is_live(show):
    """Before: a daemon that follows and whose engine refused a version was said to serve it."""
    assert "serving math@v3 (math@v5 is live)" in show(engine(READY), live_version=5)
    assert "serving math@v5" in show(engine(replace(GONE, versions={"math": 3})), live_version=5)
    assert "serving nothing yet" in show(engine(READY), live_version=None)


def test_what_is_watched_as_json_is_a_document_a_line_again_and_again(show, tmp_path, monkeypatch, capsys):
    show(engine(READY))
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(shown.time, "sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        shown.status(tmp_path / "lightning.toml", None, as_json=True, watch_s=0.5)
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["math"]["steps_done"] for line in lines] == [3, 3, 3]
    assert pauses == [0.5, 0.5, 0.5]


def test_how_often_conversations_stayed_is_shown_where_there_are_several(show):
    counts = AffinityCounts(stayed=30, moved=10)
    said = show(engine(READY, READY, conversations=counts))
    assert "calls that went on with a conversation: 75% of 40 at its engine" in said
    assert "conversation" not in show(engine(READY, READY)) + show(engine(READY, conversations=counts))


def test_of_an_engine_alone_nothing_is_added_while_it_is_ready(show):
    assert "engine" not in show(engine(READY))


def test_an_engine_that_was_given_up_says_why_and_when_it_is_tried_again(show):
    given_up = replace(GONE, state=EngineState.FAILED, retry_at=time.time() + 100)
    said = show(engine(given_up))
    assert "engine 1: failed, restarts: 2, the last because the engine ended: it was killed (SIGKILL)" in said
    assert re.search(r"; the next try is in (99|100) s", said)


def test_who_shares_a_trainer_is_shown_where_anybody_does(show):
    assert "one trainer" not in show(engine(READY), trainer_shared_with=[])
    said = show(engine(READY), trainer_shared_with=["code", "chat"])
    assert "one trainer for the adapters of this policy and of code, chat" in said


@pytest.mark.parametrize(
    ("store", "sentence"),
    [
        ({"note": None, "write_failure": "the disk is full"}, "no call or span is recorded: the disk is full"),
        ({"note": "the store holds 12 MiB", "write_failure": None}, "note: the store holds 12 MiB"),
    ],
)
def test_a_store_that_cannot_be_written_or_is_too_large_is_said_with_policies_and_without(
    show, tmp_path, monkeypatch, capsys, store: dict[str, Any], sentence: str
):
    assert sentence in show(engine(READY), store=store)
    assert "note" not in show(engine(READY))
    (tmp_path / "lightning.toml").write_text("")
    answer = {"counts": {"spans": 2, "rollouts": 1}, "store": store}
    monkeypatch.setattr(shown, "_whole", lambda url, config: answer)
    shown.status(tmp_path / "lightning.toml", None, as_json=False, watch_s=None)
    said = capsys.readouterr().out
    assert "spans: 2" in said
    assert sentence in said
