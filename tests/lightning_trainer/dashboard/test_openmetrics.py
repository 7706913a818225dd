"""``GET /metrics`` by the library's own parser, and the Grafana dashboard over it."""

import json
import re
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.dashboard import LiveDaemon
from lightning_trainer.dashboard.openmetrics import metric_name, openmetrics
from lightning_trainer.dashboard.site import PolicyNow, Site
from lightning_trainer.metrics.catalog import ABOUT
from lightning_trainer.store import SqliteStore

ROOT = Path(__file__).parents[3]


@pytest.fixture
async def families(get):
    answer = await get("/metrics")
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


async def test_the_newest_steps_numbers_are_there(families):
    (reward,) = families["lightning_reward_mean"].samples
    assert reward.labels == {"policy": "support"}
    assert 0 < reward.value <= 1
    stages = {sample.labels["stage"] for sample in families["lightning_step_seconds"].samples}
    assert {"rollout", "build", "train", "publish"} <= stages
    outcomes = {sample.labels["outcome"]: sample.value for sample in families["lightning_ledger_tokens"].samples}
    assert outcomes["trained"] > 0
    (step,) = families["lightning_step"].samples
    assert step.value == 6
    (spans,) = families["lightning_spans_stored"].samples
    assert spans.value > 500


async def test_while_a_step_is_trained_the_numbers_of_the_one_before_stay(run, get):
    with closing(sqlite3.connect(run.parent / ".lightning" / "lightning.sqlite")) as connection:
        connection.execute("UPDATE steps SET state = 'assigned' WHERE step = 6")
        connection.commit()
    text = (await get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (step,) = families["lightning_step"].samples
    assert step.value == 5
    assert families["lightning_reward_mean"].samples
    assert {sample.labels["stage"] for sample in families["lightning_step_seconds"].samples} >= {"rollout", "train"}


async def test_judges_whose_names_differ_in_punctuation_alone_are_told_apart(run, get):
    measured = {"judge/a-b/weight": 0.25, "judge/a.b/weight": 0.5, "judge/a_b/labels": 80.0}
    with closing(sqlite3.connect(run.parent / ".lightning" / "lightning.sqlite")) as connection:
        connection.execute("UPDATE steps SET metrics = ? WHERE step = 6", (json.dumps(measured),))
        connection.commit()
    text = (await get("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    weights = {sample.labels["judge"]: sample.value for sample in families["lightning_judge_weight"].samples}
    assert weights == {"a-b": 0.25, "a.b": 0.5}
    assert (
        families["lightning_judge_weight"].documentation == "remaining weight of a corrected judge, of the newest step"
    )
    (labels,) = families["lightning_judge_labels"].samples
    assert labels.labels == {"policy": "support", "judge": "a_b"}
    series = [line.rpartition(" ")[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))


def test_every_metric_of_the_documentation_has_a_name_and_a_sentence():
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    table = page.partition("| name | what it is |")[2].partition("## Warnings")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+(?:/[a-z_]+)*)`", row)}
    assert named == set(ABOUT), named ^ set(ABOUT)
    for name in named:
        family, labels = metric_name(name)
        assert re.fullmatch(r"lightning_[a-z0-9_]+", family)
        assert all(re.fullmatch(r"[a-z]+", label) for label in labels)
    assert metric_name("ledger/dropped/not_selected") == (
        "lightning_ledger_tokens",
        {"outcome": "dropped", "reason": "not_selected"},
    )


async def test_an_empty_store_has_counts_and_no_zeroes_for_what_was_not_measured(empty):
    text = (await empty("/metrics")).text
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["lightning_rollouts"].samples[0].value == 0
    assert "lightning_reward_mean" not in families


async def test_a_daemon_says_whether_its_store_can_be_written(tmp_path):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        live = LiveDaemon([], store, store)
        site = Site(Config(), store, LiveCensus(store), "http://127.0.0.1:8321", live=live)
        assert b"\nlightning_store_writable 1.0\n" in await openmetrics(site)
        store.write_failure = "the disk is full"
        assert b"\nlightning_store_writable 0.0\n" in await openmetrics(site)


class _Live(LiveDaemon):
    """A daemon whose only policy warns."""

    def now(self) -> Mapping[str, PolicyNow]:
        return {"support": PolicyNow("collecting", "", 0.0, 6, "ready", {"kl": "it wanders"}, ())}


async def test_the_version_that_is_served_is_the_engines_not_what_another_daemon_made_live(run):
    served = '\nlightning_live_version{policy="support"} '
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        live = await store.live_version("support")
        assert live is not None
        for engine, version in ((live.version - 1, live.version - 1), (None, live.version)):
            now = PolicyNow("following", "", 0.0, 6, "ready", {}, (), served=engine)
            daemon = LiveDaemon([], store, store)
            daemon.now = lambda now=now: {"support": now}
            site = Site(config, store, LiveCensus(store), "http://127.0.0.1:8321", live=daemon)
            assert f"{served}{float(version)}\n" in (await openmetrics(site)).decode()


async def test_grafanas_dashboard_asks_for_metrics_that_there_are(run):
    document = json.loads((ROOT / "docs" / "grafana-dashboard.json").read_text(encoding="utf-8"))
    asked = {
        name
        for panel in document["panels"]
        for target in panel.get("targets", ())
        for name in re.findall(r"lightning_[a-z0-9_]+", target["expr"])
    }
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        site = Site(config, store, LiveCensus(store), "http://127.0.0.1:8321", live=_Live([], store, store))
        text = (await openmetrics(site)).decode()
    # A counter's samples have another name than its family, and Prometheus knows only theirs.
    there = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    ours = {metric_name(name)[0] for name in ABOUT}
    assert asked
    assert asked <= there | ours, asked - there - ours
    assert all(panel["title"] for panel in document["panels"])
    assert ours <= asked, ours - asked
