"""A search reads as little as it can, says how far it looked, and finds the same as reading everything would."""

import contextlib
import json
import re
import sqlite3
from collections import OrderedDict

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.config.file import load_config
from lightning_trainer.dashboard.reading import search as searching
from lightning_trainer.dashboard.reading import summaries
from lightning_trainer.dashboard.reading.recorded_text import WantedName, WantedText, WantedVersion
from lightning_trainer.dashboard.reading.search import Search, search
from lightning_trainer.dashboard.reading.summaries import SummaryCache
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.sqlite import in_memory
from lightning_trainer.types import Span


@pytest.fixture
def shared(run):
    """A second policy, whose first step has taken what step 3 of policy support took."""
    with contextlib.closing(sqlite3.connect(load_config(run).daemon.state_dir / "lightning.sqlite")) as connection:
        connection.executescript("""
            INSERT INTO policies(policy, last_seq) VALUES ('sales', 0);
            INSERT INTO steps SELECT 'sales', 1, state, batch, report, metrics FROM steps WHERE step = 3;
            INSERT INTO assignments SELECT 'sales', attempt_id, 1, position FROM assignments WHERE step = 3;
        """)
        connection.commit()


@pytest.fixture
def run_search(run):
    config = load_config(run)
    with read_only(config.daemon.state_dir / "lightning.sqlite") as connection:

        def go(**wanted):
            return search(connection, Search(**wanted), SummaryCache(), config.policy)

        yield go


@pytest.mark.parametrize(
    ("text", "body", "there"),
    [
        ("PARCEL", "where is my Parcel?", True),
        ("parcels", "where is my Parcel?", False),
        ("straße", "Straße 7", True),
        ("日本", "日本 and the rest", True),
        ("日本", json.dumps("日本"), True),
        ('a "b"', json.dumps('said: A "b" c'), True),
    ],
)
def test_a_text_is_found_whatever_its_capitals_and_however_json_wrote_it(text, body, there):
    wanted = WantedText(text)
    assert wanted.is_in(body) is there
    assert wanted.may_be_in(body.encode()) or not there


def test_a_name_and_a_version_are_ruled_out_by_bytes_that_lack_them():
    assert WantedName("plan*_[ab]").may_be_in(b"..planner_a..")
    assert not WantedName("plan*_[ab]").may_be_in(b"..solver..")
    assert WantedName("*").may_be_in(b"")
    assert WantedVersion("great").may_be_in(b"")


@pytest.mark.parametrize("name", ["support@v5", "v5", "5"])
def test_a_version_is_found_by_any_of_its_names(run_search, name):
    found = run_search(version=name)
    assert found.rows
    assert all("support@v5" in row.versions for row in found.rows)


def test_what_has_no_time_left_says_where_it_goes_on_and_nothing_is_missed(run_search, monkeypatch):
    everything = [row.attempt.attempt_id for row in run_search(agent="summar*").rows]
    monkeypatch.setattr(searching, "_LONGEST_S", 0.0)
    monkeypatch.setattr(searching, "PAGE", 20)
    found, before, pages = [], None, 0
    while True:
        page = run_search(agent="summar*", before=before)
        found += [row.attempt.attempt_id for row in page.rows]
        pages += 1
        if page.next is None:
            break
        assert page.looked_at >= 20
        before = page.next
    assert found == everything == ["unclaimed"]
    assert pages > 3


def test_a_call_that_names_its_attempt_by_the_span_above_it_is_found():
    trace, ids = "a" * 32, {semconv.ROLLOUT_ID: "r", semconv.ATTEMPT_ID: "a", semconv.TASK_ID: "task"}
    root = Span(trace, "1" * 16, None, "rollout", 1, 9, {**ids, semconv.ROLLOUT_ROOT: True})
    said = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Where is my parcel?"}]}])
    told = {
        semconv.OPERATION: semconv.CHAT,
        semconv.AGENT_NAME: "support",
        semconv.RESPONSE_ID: "r1",
        semconv.INPUT_MESSAGES: said,
        semconv.OUTPUT_MESSAGES: "[]",
    }
    call = Span(trace, "2" * 16, "1" * 16, "chat m", 2, 4, told, scope="another.instrumentation")
    with in_memory([root, call]) as connection:
        connection.execute("BEGIN")
        for wanted, count in ((Search(text="parcel"), 1), (Search(agent="sup*"), 1), (Search(text="letter"), 0)):
            assert len(search(connection, wanted, SummaryCache(), ()).rows) == count


def test_rows_that_say_enough_themselves_are_not_read(run_search, monkeypatch):
    monkeypatch.setattr(searching.SummaryCache, "of", lambda *given: pytest.fail("read") if given[2] else [])
    found = run_search(outcome="failed", mode="evaluate")
    assert (found.rows, found.next) == ([], None)
    assert found.looked_at == 6 * 16 + 3 * 12 + 8


def test_a_text_beyond_the_beginning_of_a_long_rollout_is_found(run_search):
    wanted = "x" * 400
    assert [row.attempt.attempt_id for row in run_search(text=wanted).rows] == ["a<b>\"'&"]


def test_what_the_cache_loses_at_once_is_found_all_the_same(run_search, monkeypatch):
    everything = [row.attempt.attempt_id for row in run_search(agent="summar*").rows]
    monkeypatch.setattr(summaries, "_KEPT", 0)
    assert [row.attempt.attempt_id for row in run_search(agent="summar*").rows] == everything
    # Another thread takes out what was put in, between the two.
    monkeypatch.setattr(summaries, "OrderedDict", type("Forgetful", (OrderedDict,), {"__setitem__": lambda *_: None}))
    assert [row.attempt.attempt_id for row in run_search(agent="summar*").rows] == everything


@pytest.mark.parametrize(("policy", "taken"), [("support", {"001"}), ("sales", {"003"}), (None, {"001", "003"})])
def test_a_step_is_that_of_one_policy_if_it_is_named(shared, run_search, policy, taken):
    assert {row.attempt.attempt_id[:3] for row in run_search(step=1, policy=policy).rows} == taken


async def test_a_step_on_the_page_of_costs_leads_to_what_its_policy_trained_on(shared, get):
    links = re.findall(r'href="(/rollouts[?][^"]*step=1)"', (await get("/costs")).text.replace("&amp;", "&"))
    assert sorted(links) == ["/rollouts?policy=sales&step=1", "/rollouts?policy=support&step=1"]
    for link, named in zip(sorted(links), ("r-003-", "r-001-"), strict=True):
        page = (await get(link)).text
        assert set(re.findall(r">(r-\d+-)", page)) == {named}
        assert set(re.findall(r'<td class="num">([^<]*)</td>\n<td class="num">\d+</td>', page)) == {"1"}
