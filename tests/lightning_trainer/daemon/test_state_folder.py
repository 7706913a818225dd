"""Nobody but its owner reads the state folder."""

import asyncio
import stat
from types import SimpleNamespace
from typing import Any

import pytest

from lightning_trainer.daemon.state_folder import close_to_others, keep_within_limits
from lightning_trainer.errors import ConfigError, StoreError


def _mode(folder) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


async def test_the_store_is_kept_small_and_tried_again_whatever_one_look_at_it_ended_in():
    """Of an error of SQLite and of an unexpected one."""
    looks, done = [StoreError("it is locked"), KeyError("a bug")], asyncio.Event()

    class Store:
        retention = SimpleNamespace(begin_sweep=lambda: None)
        write_failure = "it is locked"

        async def sweep(self) -> bool:
            if looks:
                raise looks.pop(0)
            return False

        async def try_to_write(self) -> None:
            done.set()

    store: Any = Store()
    keeping = asyncio.create_task(keep_within_limits(store, every_s=0.001))
    async with asyncio.timeout(10):
        await done.wait()
    keeping.cancel()


def test_a_new_one_is_its_owners_alone(tmp_path):
    close_to_others(tmp_path / "a" / "state")
    assert _mode(tmp_path / "a" / "state") == 0o700


def test_one_that_was_open_is_closed_and_that_is_said(tmp_path, caplog):
    tmp_path.chmod(0o755)
    close_to_others(tmp_path)
    assert _mode(tmp_path) == 0o700
    assert "was open to other users (mode 755); it is closed to them now" in caplog.text


def test_what_is_not_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "state").touch()
    with pytest.raises(ConfigError, match=r"\[daemon\] state_dir = .* cannot be made: File exists"):
        close_to_others(tmp_path / "state")
