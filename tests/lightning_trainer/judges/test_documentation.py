"""docs/rewards.md: its configuration can be read, its function scores, its commands run, its table is complete."""

import json
import re
import shlex
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from lightning_instrumentation import semconv
from pydantic import ValidationError
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.config.judges import KINDS, Criterion
from lightning_trainer.config.model_endpoint import BudgetConfig
from lightning_trainer.daemon.api.judging import judging_router
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.samples.rewards.reward_table import read_rewards
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import SpanEvent

CREDIT = (Path(__file__).parents[3] / "docs" / "credit.md").read_text(encoding="utf-8")
PAGE = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture
async def folder(tmp_path, script, attempt_to_judge, monkeypatch):
    """What the page says, with its judge's model on loopback, and a rollout of an hour ago."""
    settings, (function,) = blocks("toml")[0], blocks("python")
    asked_there = 'kind = "rubric"\n'
    assert asked_there in settings
    (tmp_path / "lightning.toml").write_text(settings.replace(asked_there, f'{asked_there}base_url = "{script.url}"\n'))
    (tmp_path / "scores.py").write_text(function)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-page")
    monkeypatch.chdir(tmp_path)
    verdicts = [{"criterion": name, "reason": "so", "verdict": name == "found"} for name in ("found", "polite")]
    script.answers = [{"verdicts": verdicts}]
    spans = attempt_to_judge("4711")
    later_ns = time.time_ns() - 3600 * 10**9 - spans[0].start_ns
    moved = [
        replace(
            span,
            start_ns=span.start_ns + later_ns,
            end_ns=span.end_ns + later_ns,
            attributes={**span.attributes, "lightning.rollout.id": "ticket-4711"},
        )
        for span in spans
    ]
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.begin_policy("support")
        await store.append(moved)
    return tmp_path


async def test_a_scheme_of_your_own_gives_each_call_its_number(judge, attempt_to_judge, tmp_path):
    """docs/credit.md, as it stands there."""
    section = CREDIT.partition("## A scheme of your own")[2]
    settings, function = (re.findall(rf"```{one}\n(.*?)```", section, re.DOTALL)[0] for one in ("toml", "python"))
    (tmp_path / "lightning.toml").write_text(settings)
    (tmp_path / "shares.py").write_text(function)
    config = load_config(tmp_path / "lightning.toml")
    assert (config.only_policy.credit.scheme, config.only_policy.reward) == ("steps", "share")
    spans = attempt_to_judge("a", ["Ask.", "It is 6.....", "So it is 6."], agents=["planner", "worker", "planner"])
    score = {semconv.EVALUATION_NAME: "score", semconv.EVALUATION_SCORE: 0.5}
    spans[0] = replace(spans[0], events=(SpanEvent(semconv.EVALUATION_EVENT, spans[0].end_ns, score),))
    (judged_by,) = config.judge
    judged, sink = await judge("program", {}, spans=spans, **judged_by.model_dump(exclude={"kind"}))
    reading = read_spans([*spans, *sink.spans])
    table = read_rewards(reading.evaluations, reading.calls, {one.attempt_id: one for one in reading.attempts}, "share")
    assert [table.of_calls[call.call_id] for call in reading.calls] == pytest.approx([4 / 54, 12 / 54, 11 / 54])
    assert judged["a"].value == pytest.approx(0.5)


def run(*arguments):
    done = CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_the_commands_run_as_they_stand(folder, script):
    commands, *_ = blocks("bash")
    dry, judged, again, explained = (run(*shlex.split(line)[1:]) for line in commands.splitlines())
    assert "would be asked 1 question about 1 attempt:" in dry
    assert "What is 2 * 3?" in dry
    assert "gave 1 of 1 attempts a reward" in judged
    assert "0.75" in again
    assert len(script.bodies) == 2
    assert {body["headers"]["authorization"] for body in script.bodies} == {"Bearer sk-of-the-page"}
    assert "- helpful 0.75 by judge helpful (rubric, gpt-5-mini): found 1: so; polite 0: so" in explained


async def test_the_daemon_judges_what_is_posted_to_it(folder, script):
    _, curl, _ = blocks("bash")
    body = json.loads(shlex.split(curl)[-1])
    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
        daemon = FastAPI()
        config = Config.model_validate({"judge": tomllib.loads((folder / "lightning.toml").read_text())["judge"]})
        daemon.include_router(judging_router(store, store, config, engines_of(config, {}.__getitem__)))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(daemon), base_url="http://127.0.0.1:8321") as client:
            answer = await client.post("/lightning/judge", json=body)
    *working, last = map(json.loads, answer.text.splitlines())
    assert {name for line in working for name in line["working"]} == {"groups", "done"}
    assert [one["value"] for one in last["done"]["judged"]] == [0.75]
    assert len(script.bodies) == 1


def test_the_report_says_how_far_the_judge_can_be_believed(folder):
    run("judge", "ticket-4711", "--judge", "helpful")
    *_, commands = blocks("bash")
    again, told = (run(*shlex.split(line)[1:]) for line in commands.splitlines())
    assert "gave 1 of 1 attempts a reward" in again
    assert "says the same when asked again" in told
    assert "1 attempts judged, 0 of them with a right reward (checked_by names none: nothing to compare with)" in told


def test_a_judge_is_corrected_as_the_page_says():
    settings = blocks("toml")[-1]
    (policy,) = Config.model_validate(tomllib.loads(settings)).policy
    assert policy.corrected_rewards == {"helpful"}
    assert dict(policy.reward_weights) == {"helpful": 1.0, "format": 0.2}
    with pytest.raises(ValidationError, match="corrects judge 'helpful', which nothing is compared with"):
        Config.model_validate(tomllib.loads(settings.replace('checked_by = ["score"]', "")))
    with pytest.raises(ValidationError, match="corrects reward 'other', and no \\[\\[judge\\]\\] gives it"):
        Config.model_validate(tomllib.loads(settings.replace("{ helpful = ", "{ other = ")))


def test_a_policy_is_trained_by_its_own_probability_as_the_page_says():
    (settings,) = (block for block in blocks("toml") if "reference_probability" in block)
    config = Config.model_validate(tomllib.loads(settings))
    assert config.only_policy.algorithm.deviation_floor == 0.5
    assert config.judge[0].name in config.only_policy.reward_weights


def test_the_function_scores(folder):
    told = json.loads(run("judge", "ticket-4711", "--judge", "short", "--json"))
    assert [(one["value"], one["reason"]) for one in told["judged"]] == [(1.0, "3 words")]


def test_the_policy_uses_the_judges(folder):
    config = load_config(folder / "lightning.toml")
    assert set(config.only_policy.reward_weights) == {judge.name for judge in config.judge}


def test_every_kind_and_every_setting_is_there():
    rows = " ".join(line for line in PAGE.splitlines() if line.startswith("| `"))
    for kind, settings in KINDS.items():
        assert f"### `{kind}`" in PAGE
        assert [name for name in settings.model_fields if f"`{name}`" not in rows] == []
    for section in (BudgetConfig, Criterion):
        assert [name for name in section.model_fields if f"`{name}`" not in rows] == []


def test_the_defaults_are_those_of_the_table():
    compared = 0
    for setting, of, default in re.findall(r"^\| `(\w+)` \| (\S+) \| `?([^`|]+?)`? \|", PAGE, flags=re.MULTILINE):
        kind = {"all": "rubric", "models": "rubric"}.get(of, of.strip("`,"))
        if kind in KINDS and default.strip():
            stated = KINDS[kind].model_fields[setting].default
            assert str(stated).removesuffix(".0").lower() == default.strip().lower(), setting
            compared += 1
    assert compared >= 10
