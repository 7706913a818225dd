"""Where a daemon is, and that one that was killed is not found."""

import asyncio
import json
import os
import re
from pathlib import Path

import pytest

from lightning_trainer.cli.daemon.health import health
from lightning_trainer.cli.daemon.running_daemon import daemon_access, running_daemon, token
from lightning_trainer.config import Config
from lightning_trainer.daemon.announcement import alone_in, announced, announced_url
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.errors import ConfigError, StoreError


def test_a_disk_that_does_not_take_the_daemons_address_is_one_sentence(tmp_path):
    (tmp_path / "daemon.json").mkdir()
    with (
        pytest.raises(
            StoreError, match=r"daemon\.json, by which the daemon is found, cannot be written: Is a directory"
        ),
        announced(tmp_path / "daemon.json", "http://127.0.0.1:1"),
    ):
        raise AssertionError


def test_a_second_daemon_of_a_state_folder_is_refused_whatever_its_store_is(tmp_path):
    with (
        alone_in(tmp_path),
        pytest.raises(StoreError, match=rf"the state folder {tmp_path} is in use by another daemon \(process \d+\)"),
        alone_in(tmp_path),
    ):
        raise AssertionError
    with alone_in(tmp_path):
        pass
    (tmp_path / "daemon.lock").unlink()
    (tmp_path / "daemon.lock").mkdir()
    with pytest.raises(StoreError, match=r"daemon\.lock cannot be locked: Is a directory"), alone_in(tmp_path):
        raise AssertionError


async def test_a_second_daemon_on_a_shared_store_ends_before_it_listens(tmp_path, postgres_url):
    document = {"daemon": {"port": 0, "state_dir": tmp_path / "state"}, "store": {"url": postgres_url}}
    first, second, stop = (
        Daemon(Config.model_validate(document)),
        Daemon(Config.model_validate(document)),
        asyncio.Event(),
    )
    running = asyncio.create_task(first.run(stop))
    while announced_url(tmp_path / "state" / "daemon.json") is None:
        assert not running.done(), running.exception()
        await asyncio.sleep(0.05)
    with pytest.raises(StoreError, match="is in use by another daemon"):
        await second.run(asyncio.Event())
    assert second.url is None
    assert announced_url(tmp_path / "state" / "daemon.json") == first.url
    stop.set()
    await running


def test_what_a_killed_daemon_left_is_not_taken_for_a_running_one_whoever_has_its_number_now(tmp_path):
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:1"}))
    assert announced_url(path) is None
    with announced(path, "http://127.0.0.1:2"):
        assert announced_url(path) == "http://127.0.0.1:2"
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert announced_url(path) is None


@pytest.fixture
def anothers(tmp_path, monkeypatch) -> Path:
    """A configuration whose state folder is another user's. Root may look into any: what it asks of one is refused."""
    state_dir = tmp_path / "state"

    def refusing(what):
        def asked(path: Path, *arguments, **options):
            if state_dir in path.parents:
                raise PermissionError(13, "Permission denied", str(path))
            return what(path, *arguments, **options)

        return asked

    for name in ("open", "stat", "read_text"):
        monkeypatch.setattr(Path, name, refusing(getattr(Path, name)))
    path = tmp_path / "lightning.toml"
    path.write_text(f'[daemon]\nport = 1\nstate_dir = "{state_dir}"\n')
    return path


_ANOTHERS = r"the state folder {} is another user's: run this as that user, or as root, for example with sudo"


def test_what_only_its_owner_may_look_into_is_not_taken_for_a_folder_without_a_daemon(anothers, capsys):
    # Before: "no daemon runs on ..."; and of the token, which was only to be read, "cannot be kept"
    sentence = _ANOTHERS.format(anothers.with_name("state"))
    config = Config.model_validate({"daemon": {"port": 1, "state_dir": anothers.with_name("state")}})
    with pytest.raises(StoreError, match=f"^{re.escape(sentence)}$"):
        running_daemon(config)
    with pytest.raises(StoreError, match=f"^{re.escape(sentence)}$"):
        token(anothers)
    with pytest.raises(ConfigError, match=f"^{re.escape(sentence)}$"):
        daemon_access("http://127.0.0.1:1", config)
    assert health(anothers, ready=False, timeout_s=1.0) == 1
    assert capsys.readouterr().out == f"{sentence}\n"
