"""A page that was made to look like this machine by DNS gets nothing; whoever calls the daemon by its name does."""

import httpx
import pytest
from fastapi import FastAPI

from lightning_trainer.daemon.trusted_hosts import TrustedHosts


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
