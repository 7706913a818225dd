"""Held-out scores are of all evaluations that have ended; where some are not read yet, pages say so."""

import contextlib
import re
import sqlite3
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.cli.app import app
from lightning_trainer.cli.daemon.ui import dashboard_app
from lightning_trainer.cli.versions import named_version
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon import dashboard
from lightning_trainer.daemon.dashboard import LiveDaemon
from lightning_trainer.dashboard.openmetrics import openmetrics
from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.pages.overview import overview
from lightning_trainer.dashboard.routes import Dashboard
from lightning_trainer.dashboard.site import Site
from lightning_trainer.store import SqliteStore


@pytest.fixture
def unread(run):
    """The configuration of a run that nobody has read the evaluations of, such as one that ended with them."""
    config = load_config(run)
    with contextlib.closing(sqlite3.connect(config.daemon.state_dir / "lightning.sqlite")) as connection:
        assert connection.execute("DELETE FROM verdicts").rowcount
        connection.execute("DELETE FROM cursors")
        connection.commit()
    return config


READ = {
    "/": r"<dt>held-out</dt><dd>0\.\d+ ± 0\.\d+ <small>v6, ",
    "/versions/compare?policy=support&a=2&b=6": "order-4800",
}


@pytest.mark.parametrize("path", READ)
async def test_the_evaluations_of_a_stopped_run_count_that_its_daemon_had_not_read(unread, path):
    transport = httpx.ASGITransport(dashboard_app(unread, None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        assert re.search(READ[path], (await client.get(path)).text)


async def test_the_command_shows_and_chooses_what_the_page_does(run):
    transport = httpx.ASGITransport(dashboard_app(load_config(run), None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        page = (await client.get("/versions")).text
    scores = re.findall(r'<td class="num">(0\.\d+) <small>± (0\.\d+)</small></td>', page)
    (best,) = re.findall(r"v(\d+)</a> <span class=\"badge\"", page)
    told = CliRunner().invoke(app, ["versions", "--config", str(run)], env={"COLUMNS": "200"}).output
    assert sorted(re.findall(r"(0\.\d+) ± (0\.\d+)", told)) == sorted(scores) != []
    assert named_version(run, None, "best")[2] == int(best)


class ReadingDaemon(LiveDaemon):
    """A daemon that does nothing but read evaluations."""

    def now(self):
        return {}


@pytest.fixture
async def running(unread):
    """``running.get("/versions")``: a page of a daemon that has read none of them yet, and ``running.site``."""
    async with SqliteStore(unread.daemon.state_dir / "lightning.sqlite") as store:
        policies: Any = [SimpleNamespace(policy=policy) for policy in unread.policy]
        live = ReadingDaemon(policies, store, store)
        site = Site(unread, store, LiveCensus(store), "http://127.0.0.1:8321", live=live)
        pages = FastAPI()
        pages.include_router(Dashboard(site, None).router())
        transport = httpx.ASGITransport(pages)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321") as client:
            yield SimpleNamespace(get=client.get, site=site)


@pytest.fixture
def in_a_hurry(monkeypatch):
    """Pages whose time for reading is over at once: each reads a few of the 36 evaluations."""
    monkeypatch.setattr(dashboard, "_READING_S", 0.0)


async def test_a_daemon_reads_evaluations_for_whoever_asks_for_a_score(running, in_a_hurry):
    read = []
    for page in (lambda: overview(running.site, Asked({})), lambda: openmetrics(running.site)):
        await page()
        read.append(await running.site.store.scan(lambda c: c.execute("SELECT count(*) FROM verdicts").fetchone()[0]))
    assert 0 < read[0] < read[1], "some for each"
    assert b"lightning_held_out_score{" in await openmetrics(running.site)


COMPARED = "/versions/compare?policy=support&a=2&b=6"


async def test_a_daemon_compares_what_the_page_of_a_stopped_run_does(unread, running):
    transport = httpx.ASGITransport(dashboard_app(unread, None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        (stopped,) = re.findall(r"<dl.*?</table>", (await client.get(COMPARED)).text, re.DOTALL)
    assert stopped in (await running.get(COMPARED)).text


async def test_versions_are_not_compared_while_evaluations_are_not_read(running, in_a_hurry):
    page = (await running.get(COMPARED)).text
    assert "16 evaluations are not read yet" in page
    assert not re.search("No task was tried|McNemar|<table", page)
    assert f'href="{COMPARED}"' in page.replace("&amp;", "&"), "and the next look goes on"
    assert "McNemar" in (await running.get(COMPARED)).text


async def test_scores_of_versions_are_said_to_be_of_what_was_read(running, in_a_hurry):
    assert (
        "16 evaluations are not read yet: held-out scores are those of the others"
        in (await running.get("/versions")).text
    )
    assert "not read yet" not in (await running.get("/versions")).text
