"""Where a daemon is, and that one that was killed is not found."""

import json
import os

import pytest

from lightning_trainer.daemon.announcement import announced, announced_url
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


def test_what_a_killed_daemon_left_is_not_taken_for_a_running_one_whoever_has_its_number_now(tmp_path):
    path = tmp_path / "daemon.json"
    path.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:1"}))
    assert announced_url(path) is None
    with announced(path, "http://127.0.0.1:2"):
        assert announced_url(path) == "http://127.0.0.1:2"
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert announced_url(path) is None
