"""Where a daemon is, and that one that was killed is not found."""

import asyncio
import json
import os

import pytest

from lightning_trainer.config import Config
from lightning_trainer.daemon.announcement import alone_in, announced, announced_url
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.errors import StoreError


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
