"""A daemon that listens on all addresses: ``0.0.0.0`` is nobody's name for it, and no certificate is for it."""

import asyncio
import json
import os
import socket
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from lightning_instrumentation.access.known import known_daemon
from lightning_instrumentation.routing.hosts import canonical_host

from lightning_trainer.cli.daemon.running_daemon import running_daemon, url_for_others
from lightning_trainer.config import Config, DaemonConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon import service
from lightning_trainer.daemon.http.trusted_hosts import VARIABLE, public_name
from lightning_trainer.daemon.publication.guard import held_out_score
from lightning_trainer.daemon.service import Daemon

pytestmark = pytest.mark.process

EVALUATION = """
import os, httpx, openai
import lightning_instrumentation as lt
client = openai.OpenAI(base_url=os.environ["LIGHTNING_ENDPOINT"] + "/v1", api_key=os.environ["LIGHTNING_TOKEN"])
assert not client.models.list().data
lt.init()
with lt.rollout("held-out"):
    pass
assert lt.flush(30)
assert httpx.get(os.environ["LIGHTNING_ENDPOINT"] + "/lightning/status").status_code == 401
print(1)
"""


@pytest.fixture
def config(tmp_path: Path, authority, monkeypatch: pytest.MonkeyPatch) -> Config:
    """A daemon with TLS on all addresses, as docs/security.md has it, and a policy with a guard."""
    monkeypatch.delenv(VARIABLE, raising=False)
    cert, key = authority.sign("gpu-box")
    monkeypatch.setenv("LIGHTNING_CA_FILE", str(authority.file))
    (tmp_path / "lightning.toml").write_text(
        f'[daemon]\nhost = "0.0.0.0"\nport = 0\nstate_dir = "state"\ntls_cert = "{cert}"\ntls_key = "{key}"\n'
        '[[policy]]\nname = "p"\nagents = ["a"]\nmodel = "random:tiny"\nguard.command = ["true"]\n'
    )
    monkeypatch.chdir(tmp_path)
    return load_config(tmp_path / "lightning.toml")


@asynccontextmanager
async def running(config: Config, monkeypatch: pytest.MonkeyPatch):
    """The daemon without its policies; gives what they were told."""
    told = SimpleNamespace()

    async def compose(context, stack):
        told.context = context
        return ()

    monkeypatch.setattr(service, "compose", compose)
    stop = asyncio.Event()
    daemon = Daemon(config)
    run = asyncio.create_task(daemon.run(stop))
    while running_daemon(config) is None:
        await asyncio.wait({run}, timeout=0.05)
        assert not run.done(), run.result()
    yield daemon, told.context
    stop.set()
    await run


async def test_a_guards_program_reaches_it_with_any_client(config, tmp_path, monkeypatch) -> None:
    async with running(config, monkeypatch) as (_, context):
        environment = {**os.environ, "LIGHTNING_ENDPOINT": context.guard_url, "LIGHTNING_TOKEN": context.token}
        score = await held_out_score(
            (sys.executable, "-c", EVALUATION),
            environment=environment,
            working_dir=tmp_path,
            log=tmp_path / "guard.log",
            timeout_s=120,
        )
    assert score == 1, (tmp_path / "guard.log").read_text()


async def test_commands_of_its_machine_and_people_elsewhere_have_addresses_that_work(
    config, monkeypatch, lightning
) -> None:
    async with running(config, monkeypatch) as (daemon, context):
        here = running_daemon(config)
        assert here is not None
        port = here.rpartition(":")[2]
        assert here == f"https://127.0.0.1:{port}"
        assert daemon.url == context.url == url_for_others(config) == f"https://gpu-box:{port}"
        assert known_daemon(here) == known_daemon(context.url) is not None
        health = await asyncio.to_thread(lightning.run, "health", cwd=Path.cwd())
        assert (health.returncode, json.loads(health.stdout)["status"]) == (0, "ok")


def test_what_others_call_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Machine")
    monkeypatch.delenv(VARIABLE, raising=False)
    everywhere = DaemonConfig(host="0.0.0.0")
    assert public_name(DaemonConfig(host="10.0.0.5"), ("gpu-box",)) is None
    assert public_name(everywhere) == "machine"
    assert public_name(everywhere, ("localhost", "GPU-box")) == "gpu-box"
    listed = DaemonConfig(host="::", trusted_hosts=("train.example:8321", "gpu-box"))
    assert public_name(listed) == "train.example"
    assert public_name(listed, ("other", "gpu-box")) == "gpu-box"
    assert public_name(listed, ("*.example",)) == "train.example"
    monkeypatch.setenv(VARIABLE, "node7")
    assert public_name(everywhere) == "node7"


def test_all_addresses_are_loopback_for_its_own_machine() -> None:
    assert DaemonConfig(host="0.0.0.0").url() == "http://127.0.0.1:8321"
    assert DaemonConfig(host="::").url() == "http://[::1]:8321"
    assert DaemonConfig(host="::").url(name="gpu-box") == "http://gpu-box:8321"
    assert canonical_host("[::]") == canonical_host("0:0:0:0:0:0:0:0") == canonical_host("127.0.0.1")
