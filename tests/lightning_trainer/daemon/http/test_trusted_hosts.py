"""A page that was made to look like this machine by DNS gets nothing; whoever calls the daemon by its name does."""

import httpx
import pytest
from fastapi import FastAPI

from lightning_trainer.daemon.http.trusted_hosts import VARIABLE, TrustedHosts, hosts_of_environment
from lightning_trainer.errors import ConfigError


async def _status(host_header: str | None, *, host: str = "127.0.0.1", listed: tuple[str, ...] = ()) -> int:
    app = FastAPI()
    app.add_middleware(TrustedHosts, host=host, listed=listed)
    app.get("/")(lambda: "in")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        answer = await client.get("/", headers={} if host_header is None else {"host": host_header})
    if answer.status_code != 200:
        assert "list it in [daemon] trusted_hosts" in answer.json()["error"]["message"]
    return answer.status_code


@pytest.mark.parametrize(
    "host", [None, "127.0.0.1:8321", "localhost:8321", "LOCALHOST", "localhost.", "[::1]:8321", "[::1]"]
)
async def test_loopback_names_come_in(host) -> None:
    assert await _status(host) == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "localhost.evil.example", "", "192.168.1.7"]
)
async def test_other_names_do_not(host) -> None:
    assert await _status(host) == 421
    assert await _status(host, listed=("gpu-box",)) == 421


async def test_a_listed_name_and_the_configured_host_come_in() -> None:
    assert await _status("GPU-box:8321", listed=("gpu-box",)) == 200
    assert await _status("10.0.0.5:8321", host="10.0.0.5") == 200


async def test_a_daemon_on_all_addresses_is_called_by_any_address_but_not_by_any_name() -> None:
    assert await _status("10.0.0.5:8321", host="0.0.0.0") == 200
    assert await _status("evil.example", host="0.0.0.0") == 421


async def test_names_of_the_environment_come_in(monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, " GPU-Box , node7:8321,")
    listed = hosts_of_environment()
    for host in ("gpu-box:8321", "node7"):
        assert await _status(host, listed=listed) == 200
    assert await _status("evil.example", listed=listed) == 421


def test_nothing_is_listed_unless_the_environment_says_so(monkeypatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert hosts_of_environment() == ()


@pytest.mark.parametrize("name", ["http://gpu-box", "gpu-box/", ":8321"])
def test_what_is_no_name_is_refused_with_its_value(name, monkeypatch) -> None:
    monkeypatch.setenv(VARIABLE, f"node7,{name}")
    with pytest.raises(ConfigError, match=f"{VARIABLE} has '{name}'"):
        hosts_of_environment()
