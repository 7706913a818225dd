"""Every page over a real store and over an empty one: what is on it, and that nothing of a run is markup."""

import contextlib
import re
import shutil
import sqlite3
import time
from itertools import pairwise
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from lightning_instrumentation import semconv

from benchmarks.dashboard.example_attempts import Writer, letters
from lightning_trainer.cli.daemon.ui import dashboard_app
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.dashboard.pages.versions import lineage_chart
from lightning_trainer.dashboard.rendering import Pages
from lightning_trainer.store import SqliteStore

PAGES = {
    "/": ("Overview", "v6", "reward in training", "r-running"),
    "/rollouts": ("r-006-0-0", "support@v5", "Rewards of"),
    "/group?id=step-3/order-4721": ("4 attempts of one task", "from the mean", "advantage"),
    "/rollout?id=r-003-0-1": (
        "is trained",
        "Where is order 4721?",
        "look_up",
        "Token",
        "it balances",
        "names the order",
    ),
    "/rollout?id=r-003-0-1&shade=surprise": ("4 nats or more",),
    "/rollout?id=r-running": ("is not trained yet", 'class="cause bad"'),
    "/rollout?id=r-held-006-3": ("evaluations are never trained", 'class="cause plain"'),
    "/rollout?id=r-unclaimed": ("Forty orders, two complaints.", "not_selected"),
    "/rollout?id=r-failed": ("the shop&#39;s database did not answer",),
    "/agents": ("summarizer", "unclaimed", "1 call without token ids"),
    "/agents/prompts?agent=support": ("You are the support agent", "calls of support", "r-new-2"),
    "/agents/prompts?agent=summarizer": ("None of its calls",),
    "/versions": ("Lineage", "serving", "v6", "its canary is worse: mean", "candidate", "long answers"),
    "/versions/promote?policy=support&version=3": ("Promote v3 of support?", "It was held back", "against v2"),
    "/versions/promote?policy=support&version=2": ("It was served before",),
    "/versions/promote?policy=support&version=6": ("It is served already.",),
    "/rollout?id=r-photo": ("came like this", "/image?"),
    "/versions/compare?policy=support&a=2&b=6": ("12", "order-4800", "exact McNemar"),
    "/versions/rollback?policy=support&version=3": ("Roll support back to v3?",),
    "/charts": ("reward/mean", "grad_norm", "ledger/trained", "mean reward of the step"),
    "/costs": ("By agent", "By step", "summarizer"),
    "/setup": ("curl http://127.0.0.1", "[daemon]", "group_size", "python"),
}


# All of a daemon's routes take thirty times as long to make as a page: one daemon for all of the pages.
async def test_a_page_says_what_the_store_knows(get):
    for path, said in PAGES.items():
        page = await get(path)
        assert page.status_code == 200, (path, page.text)
        assert [words for words in said if words not in page.text] == [], path


EMPTY = {
    "/": "No step has ended yet",
    "/rollouts": "No rollout has come yet",
    "/agents": "No agent has called yet",
    "/versions": "There is no version yet",
    "/charts": "No step has ended",
    "/costs": "No step has ended yet",
    "/setup": "Connect an agent",
}


async def test_an_empty_store_says_what_to_do_next(empty):
    for path, said in EMPTY.items():
        page = await empty(path)
        assert (page.status_code, said in page.text) == (200, True), path


async def test_what_cannot_be_shown_is_said_in_a_sentence(get):
    for path, status, sentence in (
        ("/rollout?id=nobody", 404, "there is no rollout"),
        ("/rollout", 400, "the address lacks id="),
        ("/group?id=nobody", 404, "there is no group"),
        ("/span?trace=a&span=b", 404, "there is no span"),
        ("/versions?policy=sales", 404, "there is no policy"),
        ("/versions/compare?a=1&b=1", 400, "name two versions"),
        ("/versions/promote?version=99", 404, "there is no version 99"),
        ("/image?trace=a&span=b&attribute=c&name=d", 404, "there is no span"),
        ("/rollouts?least=high", 400, "write a number, such as 0.5"),
        ("/rollouts?step=-1", 400, "write a number from 0"),
        ("/rollouts?policy=sales", 400, "policy = 'sales' says whose step is meant: name a step, too"),
        ("/rollouts?since=yesterday", 400, "write a time as"),
        ("/rollouts?since=0001-01-01T00:00", 400, "write a time between the years 1970 and 2200"),
        ("/rollouts?until=9999-12-31T23:59", 400, "write a time between the years 1970 and 2200"),
        ("/rollouts?before=" + "9" * 19 + ",x", 400, "before= is not the end of a page"),
        ("/rollouts?before=x", 400, "before= is not the end of a page"),
        ("/rollouts?outcome=great", 400, "there are running, succeeded, failed"),
        ("/rollouts?text=" + "x" * 600, 400, "text has 600 characters"),
    ):
        page = await get(path)
        assert (page.status_code, sentence in page.text.replace("&#39;", "'")) == (status, True), (path, page.text)


@pytest.mark.parametrize("path", ["/", "/text?trace=a&span=b&attribute=c", "/image?trace=a&span=b&attribute=c&name=d"])
async def test_a_store_that_cannot_be_read_is_said_on_whatever_is_asked_for(run, path):
    (run.parent / ".lightning" / "lightning.sqlite").write_bytes(b"this is no store" * 100)
    transport = httpx.ASGITransport(dashboard_app(load_config(run), None), False)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        page = await client.get(path)
    assert (page.status_code, "cannot be read" in page.text) == (503, True)


async def test_nothing_is_inline_and_nothing_comes_from_elsewhere(get):
    for path in (*PAGES, "/rollouts?text=nothing+has+this"):
        page = await get(path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        assert not re.search(r"<[^>]*\sstyle=|<style|<script(?! src=\"/static/)|\son\w+=", page.text), path
        assert not re.search(r"(?:src|href|action)=\"(?!/|#|\?)", page.text), path


async def test_what_an_agent_said_is_never_markup(get):
    page = await get("/rollout?id=" + quote("r-a<b>\"'&"))
    assert page.status_code == 200
    assert "&lt;script&gt;document.title" in page.text
    assert "<script>document" not in page.text
    assert "<i>" not in page.text
    for hidden in ("\x00", "\x07", "\u202e", "\u2066"):
        assert hidden not in page.text
    assert "⟨U+202E⟩txt.exe" in page.text
    assert "{{ 7*7 }}" in page.text
    assert "980,000 characters more" in page.text
    assert len(page.text) < 150_000
    (query,) = set(re.findall(r'980,000 characters more: <a href="/text\?([^"]*)"', page.text))
    whole = await get("/text?" + query.replace("&amp;", "&"))
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert len(whole.text) > 1_000_000


@pytest.mark.parametrize(
    ("query", "wanted", "unwanted"),
    [
        ("agent=summar*", "r-unclaimed", "r-006-0-0"),
        ("task=summary", "r-unclaimed", "r-006-0-0"),
        ("outcome=failed", "r-failed", "r-new-0"),
        ("mode=evaluate", "r-held-006-0", "r-006-0-0"),
        ("version=v5", "r-006-0-0", "r-new-0"),
        ("step=2", "r-002-0-0", "r-003-0-0"),
        ("rewarded=no", "r-new-2", "r-new-0"),
        ("least=0.5&most=0.5", "r-a&lt;b&gt;", "r-006-0-0"),
        ("text=two+COMPLAINTS", "r-unclaimed", "r-006-0-0"),
        ("group=next", "r-new-1", "r-006-0-0"),
    ],
)
async def test_rollouts_are_found_by(get, query, wanted, unwanted):
    page = await get(f"/rollouts?{query}")
    assert f">{wanted}" in page.text
    assert f">{unwanted}" not in page.text


async def test_pages_of_rollouts_go_on_where_they_ended_and_show_each_once(get):
    found: list[str] = []
    address = "/rollouts"
    while address:
        page = await get(address)
        found += re.findall(r'<td><a href="/rollout\?id=([^"]*)"', page.text)
        older = re.search(r'<a href="([^"]*)" rel="next"', page.text)
        address = older[1].replace("&amp;", "&") if older else ""
    assert len(found) == len(set(found)) == 6 * 16 + 3 * 12 + 8


async def test_a_step_that_is_being_trained_is_not_counted_before_it_has_ended(run, get):
    before = (await get("/costs")).text
    assert "The newest 6 steps." in before
    with contextlib.closing(sqlite3.connect(run.parent / ".lightning" / "lightning.sqlite")) as connection:
        (last,) = connection.execute("SELECT sum(tokens) FROM ledger WHERE step = 6").fetchone()
        (whole,) = connection.execute("SELECT sum(tokens) FROM ledger").fetchone()
        connection.execute("UPDATE steps SET state = 'assigned' WHERE step = 6")
        connection.commit()
    assert "<dt>steps</dt><dd>5" in (await get("/")).text
    costs = (await get("/costs")).text
    assert "The newest 5 steps." in costs
    assert last > 0
    assert f"<dt>sampled tokens</dt><dd>{whole - last:,}</dd>" in costs


async def test_a_bin_of_the_histogram_leads_to_its_rollouts(get):
    page = await get("/rollouts")
    links = [link.replace("&amp;", "&") for link in re.findall(r'<a href="(/rollouts\?least=[^"]*)"', page.text)]
    assert links
    for link in links:
        (bounds,) = set(
            re.findall(re.escape(link.replace("&", "&amp;")) + r'" aria-label="(\S+) to (\S+): ', page.text)
        )
        low, high = map(float, bounds)
        cells = re.findall(r'</td>\n<td class="num">([\d.]+)</td>\n<td><span class="outcome', (await get(link)).text)
        assert cells, "a bin with nothing in it is no link"
        assert all(low <= float(cell) < high or float(cell) == high == 1 for cell in cells), link
    last = await get(links[-1])
    assert 'class="bin chosen"' in last.text
    assert "r-006" in last.text


async def test_tokens_of_calls_without_ids_are_those_that_the_server_counted(run):
    config = load_config(run)
    writer = Writer("uncounted", "summary-2", "summary-2", "train", time.time_ns(), letters)
    writer.span("call", "chat m", "root", 1.0, **{semconv.OPERATION: semconv.CHAT, semconv.RESPONSE_ID: "resp-2"})
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        await store.append(writer.end(1.0))
    transport = httpx.ASGITransport(dashboard_app(config, None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        rows = (await client.get("/rollouts")).text.split("<tr>")
    for name, tokens in (("r-unclaimed", "940"), ("r-uncounted", "–")):
        (row,) = (row for row in rows if f"id={name}" in row)
        assert f'<td class="num">1</td>\n<td class="num">{tokens}</td>' in row


async def test_a_skipped_step_without_a_reward_has_none_and_no_time_of_its_own(run, get):
    before = (await get("/")).text
    (took,) = re.findall(r"<dt>a step takes</dt><dd>([\d.]+) s</dd>", before)
    assert re.search(r"<dt>reward, newest step</dt><dd>0\.", before)
    with contextlib.closing(sqlite3.connect(run.parent / ".lightning" / "lightning.sqlite")) as connection:
        connection.execute("UPDATE steps SET state = 'skipped', report = NULL, metrics = '{}' WHERE step > 3")
        connection.execute("DELETE FROM versions WHERE version > 3")
        connection.commit()
    after = (await get("/")).text
    assert "<dt>reward, newest step</dt><dd>–</dd>" in after
    (still,) = re.findall(r"<dt>a step takes</dt><dd>([\d.]+) s</dd>", after)
    assert float(still) > 0.6 * float(took), "three of the newest five took no time"


async def test_open_pages_share_one_drawing_each_with_the_mark_of_its_own_session(tmp_path, run, monkeypatch):
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], "the token of this test")
        drawn: list[str] = []
        draw = Pages.html
        monkeypatch.setattr(Pages, "html", lambda pages, name, **more: drawn.append(name) or draw(pages, name, **more))
        marks = set()
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(3):
                transport = httpx.ASGITransport(app)
                client = await stack.enter_async_context(
                    httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8321")
                )
                await client.post("/login", data={"token": "the token of this test"})
                page = await client.get("/rollout?id=r-new-0", headers={"x-renewed-page": "1"})
                assert page.status_code == 200
                shown = set(re.findall(r'name="csrf" value="(\w+)"', page.text))
                assert shown == set(re.findall(r'name="csrf" value="(\w+)"', (await client.get("/")).text))
                marks |= shown
            stranger = await stack.enter_async_context(
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321")
            )
            refused = await stranger.get("/rollout?id=r-new-0", headers={"x-renewed-page": "1"})
            assert refused.status_code == 401
        assert drawn.count("rollout.html") == 1
        assert len(marks) == 3


async def _charts_beside(tmp_path, *folders) -> str:
    config = Config.model_validate({"metrics": {"beside": [str(folder) for folder in folders]}})
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], None)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321") as client:
            return (await client.get("/charts")).text


async def test_runs_beside_are_overlaid_and_one_that_cannot_be_read_is_said(tmp_path, run):
    page = await _charts_beside(tmp_path, run.parent / ".lightning", "nowhere")
    assert f"support in {run.parent.name}" in page
    assert "there is no store nowhere/lightning.sqlite" in page


async def test_runs_beside_that_share_a_name_are_told_apart_by_their_folders(tmp_path, run):
    twin = tmp_path / "elsewhere" / run.parent.name / ".lightning"
    shutil.copytree(run.parent / ".lightning", twin)
    page = await _charts_beside(tmp_path, run.parent / ".lightning", twin)
    assert f"support in {run.parent}/.lightning" in page
    assert f"support in {twin}" in page


async def test_secrets_of_the_configuration_are_not_on_the_page(tmp_path, run, get):
    from lightning_trainer.dashboard.pages.setup import _sections

    config = Config.model_validate(
        {
            "daemon": {"token": "a-very-secret-token"},
            "metrics": {"token": "another-very-secret-token"},
            "gateway": {"embeddings": "http://user:hunter2@127.0.0.1:9/v1", "embeddings_key": "MY_KEY"},
        }
    )
    settings = {(title, one.name): one for title, found in _sections(config) for one in found}
    assert not any("hunter2" in one.value or "very-secret" in one.value for one in settings.values())
    for title in ("[daemon]", "[metrics]"):
        assert settings[title, "token"].value == "set, not shown"
        assert not settings[title, "token"].default
    assert settings["[daemon]", "max_body_bytes"].default


async def test_every_page_and_search_says_the_same_of_a_run_that_was_moved_to_postgresql(get_moved):
    for path, words in PAGES.items():
        page = await get_moved(path)
        assert page.status_code == 200, path
        for word in words:
            assert word in page.text, path
    for search in (
        "task=order",
        "text=refund",
        "step=3",
        "step=3&policy=support",
        "outcome=failed",
        "least=0.5",
        "group=step-3/order-4721",
    ):
        page = await get_moved(f"/rollouts?{search}")
        assert page.status_code == 200, search
    for answer in ("/lightning/status", "/metrics", "/lightning/policies/support/rollouts"):
        assert (await get_moved(answer)).status_code in (200, 404), answer


async def test_lines_that_connect_an_agent_name_the_daemon_and_not_what_shows_the_stopped_run(run):
    run.write_text(run.read_text().replace("port = 0", "port = 9321"))
    transport = httpx.ASGITransport(dashboard_app(load_config(run), None))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8322") as client:
        page = (await client.get("/setup")).text
    assert "export LIGHTNING_ENDPOINT=http://127.0.0.1:9321" in page
    assert "completions \\\n  -H " in page, "a command that goes on is indented"


def test_names_of_versions_do_not_run_into_each_other():
    rows: list[Any] = [
        {"version": 19_950 + number, "parent": None, "state": "gone", "held_out": None} for number in range(50)
    ]
    rows[-1]["state"] = "serving"
    names = re.findall(r'x="([\d.]+)" y="[\d.]+" text-anchor="middle">(v\d+)<', lineage_chart(rows, width=1150))
    assert names[-1][1] == "v19999"
    places = [float(x) for x, _ in names]
    assert min(after - before for before, after in pairwise(places)) > 8 * len("v19999")
