"""Who comes in, with what cookie, and which forms are taken."""

import re

import httpx
import pytest

from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.daemon.watching.notifying_store import NotifyingStore
from lightning_trainer.errors import ConfigError
from lightning_trainer.store import SqliteStore

TOKEN = "token-of-the-dashboards-tests"
FORM = {"content-type": "application/x-www-form-urlencoded"}


@pytest.fixture
async def client(run):
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], TOKEN)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8321") as opened:
            yield opened


async def log_in(client: httpx.AsyncClient, back: str = "/agents") -> httpx.Response:
    return await client.post("/login", data={"token": TOKEN, "back": back})


async def test_a_page_asks_for_the_token_and_shows_nothing_else(client):
    for path in ("/", "/rollout?id=r-003-0-1", "/setup", "/text?trace=a&span=b&attribute=c"):
        page = await client.get(path)
        assert page.status_code == 401
        assert 'type="password"' in page.text
        assert "order-47" not in page.text
    assert (await client.get("/events")).status_code == 401
    assert (await client.get("/metrics")).status_code == 401


async def test_a_scrapers_token_opens_the_metrics_alone_and_is_shown_nowhere(run):
    scraper = "token-of-the-scraper"
    text = run.read_text()
    assert "[metrics]" not in text
    run.write_text(f'{text}\n[metrics]\ntoken = "{scraper}"\n')
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        app = Daemon(config)._app(store, NotifyingStore(store), [], TOKEN)
        transport, url = httpx.ASGITransport(app), "http://127.0.0.1:8321"
        async with httpx.AsyncClient(transport=transport, base_url=url) as client:
            given = {"authorization": f"Bearer {scraper}"}
            assert (await client.get("/metrics", headers=given)).status_code == 200
            assert (await client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})).status_code == 200
            assert (await client.get("/metrics", headers={"authorization": f"Bearer {scraper}x"})).status_code == 401
            for path in ("/", "/setup", "/lightning/status", "/v1/models"):
                assert (await client.get(path, headers=given)).status_code == 401
            assert (await client.post("/do/drop", data={"rollout": "r-new-0"}, headers=given)).status_code == 401
            assert (await client.post("/rollouts/r-new-0/reward", json={"value": 1}, headers=given)).status_code == 401
            page = await client.get("/setup", headers={"authorization": f"Bearer {TOKEN}"})
            assert (page.status_code, "metrics" in page.text, scraper in page.text) == (200, True, False)


@pytest.mark.parametrize("token", ["short", "none", "a token with a line\\nbreak", " spaces-around-the-token "])
def test_a_scrapers_token_that_cannot_be_one_is_refused_without_being_shown(run, token):
    text = run.read_text()
    run.write_text(f'{text}\n[metrics]\ntoken = "{token}"\n')
    with pytest.raises(ConfigError, match=r"metrics\.token") as refused:
        load_config(run)
    assert token not in str(refused.value)


async def test_the_cookie_is_not_the_token_and_no_script_or_other_site_gets_it(client):
    answer = await log_in(client)
    assert (answer.status_code, answer.headers["location"]) == (303, "/agents")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("lightning_session_8321=")
    assert TOKEN not in cookie
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert (await client.get("/agents")).status_code == 200


@pytest.mark.long
async def test_a_wrong_token_opens_nothing(client):
    for wrong in ("", TOKEN[:-1], TOKEN + "x", "é"):
        answer = await client.post("/login", data={"token": wrong})
        assert answer.status_code == 401
        assert "set-cookie" not in answer.headers
        assert "this is not the daemon" in answer.text


@pytest.mark.parametrize(
    "back", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)", "x"]
)
async def test_logging_in_leads_nowhere_else(client, back):
    assert (await log_in(client, back)).headers["location"] == "/"


async def test_logging_out_ends_the_session_and_not_the_cookie_alone(client):
    await log_in(client)
    page = await client.get("/agents")
    (csrf,) = set(re.findall(r'name="csrf" value="(\w+)"', page.text))
    kept = dict(client.cookies)
    assert (await client.post("/logout", data={"csrf": csrf})).status_code == 303
    client.cookies.update(kept)
    assert (await client.get("/agents")).status_code == 401


async def test_logging_out_with_something_that_is_no_form_is_answered(client):
    await log_in(client)
    answer = await client.post("/logout", json={})
    assert (answer.status_code, "application/x-www-form-urlencoded" in answer.text) == (422, True)
    assert (await client.get("/agents")).status_code == 200


async def test_a_form_without_this_sessions_mark_changes_nothing(client):
    await log_in(client)
    page = await client.get("/rollout?id=r-new-0")
    (csrf,) = set(re.findall(r'name="csrf" value="(\w+)"', page.text))
    label = {"rollout": "r-new-0", "reward": "0.25"}
    refused = [
        await client.post("/do/label", data=label),
        await client.post("/do/label", data={**label, "csrf": "0" * 64}),
        await client.post("/do/label", data={**label, "csrf": csrf}, headers={"origin": "https://evil.example"}),
        await client.post("/do/label", data={**label, "csrf": csrf}, headers={"sec-fetch-site": "cross-site"}),
    ]
    assert [one.status_code for one in refused] == [403] * 4
    assert (await client.post("/do/label", json={**label, "csrf": csrf})).status_code == 422
    taken = await client.post("/do/label", data={**label, "csrf": csrf}, headers={"origin": "http://127.0.0.1:8321"})
    assert taken.status_code == 303
    page = await client.get(taken.headers["location"])
    assert "reward reward = 0.25 stored" in page.text
    assert "a person" in page.text


async def test_a_proxy_that_replaces_the_host_is_what_is_wrong(client):
    """nginx's default: the page and the login work, and no page that is opened again would help."""
    await log_in(client)
    page = await client.get("/rollout?id=r-new-0")
    (csrf,) = set(re.findall(r'name="csrf" value="(\w+)"', page.text))
    proxied = {"origin": "https://train.example", "sec-fetch-site": "same-origin"}
    answer = await client.post("/do/label", data={"rollout": "r-new-0", "reward": "1", "csrf": csrf}, headers=proxied)
    assert answer.status_code == 403
    assert "Host is &#39;127.0.0.1:8321&#39;" in answer.text
    assert "proxy_set_header Host $http_host" in answer.text
    assert "open its page again" not in answer.text


async def test_a_page_cannot_be_made_to_say_what_its_address_says(client):
    await log_in(client)
    assert "log in at evil" not in (await client.get("/?said=log+in+at+evil")).text


async def test_a_program_comes_in_with_the_bearer_token_and_needs_no_form(client):
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert (await client.get("/costs", headers=bearer)).status_code == 200
    done = await client.post("/do/drop", data={"rollout": "r-new-0"}, headers=bearer)
    assert done.status_code == 303
    again = await client.post("/do/drop", data={"rollout": "r-003-0-0"}, headers=bearer)
    assert again.status_code == 409
    assert "what was trained cannot be taken out" in again.text


async def test_a_link_from_elsewhere_is_opened_again_by_our_own_page(client):
    answer = await client.get("/agents", headers={"sec-fetch-site": "cross-site"})
    assert (answer.status_code, answer.headers["refresh"]) == (401, "0")
    assert "refresh" not in (await client.get("/agents", headers={"sec-fetch-site": "same-origin"})).headers


async def test_other_names_of_the_host_are_refused_before_anything(client):
    assert (await client.get("/", headers={"host": "evil.example"})).status_code == 421


async def test_a_form_has_a_bound(client):
    await log_in(client)
    answer = await client.post("/do/label", content=b"note=" + b"x" * 300_000, headers=FORM)
    assert answer.status_code == 422
