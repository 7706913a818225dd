"""Weight files: private, two versions at most, gone at the end, and gone later where the end was a kill."""

import logging
import os
import subprocess
import sys
from collections import namedtuple

import psutil
import pytest

from lightning_trainer.errors import PublicationError
from lightning_trainer.serving import shared_memory
from lightning_trainer.serving.ownership import owner_tag, remove_orphans
from lightning_trainer.serving.shared_memory import WeightFiles


@pytest.fixture
def memory(tmp_path):
    folder = tmp_path / "shm"
    folder.mkdir()
    return folder


def files(tmp_path, memory, **options) -> WeightFiles:
    return WeightFiles(tmp_path / "state", run_id="run", version_bytes=1024, shared_memory=memory, **options)


def test_the_folder_is_private_and_gone_after_the_run(tmp_path, memory):
    with files(tmp_path, memory) as weights:
        weights.path(1).write_bytes(b"weights")
        assert weights.path(1).parent == weights.folder
        assert weights.folder.parent == memory
        assert weights.folder.name.startswith("lightning-trainer-run-")
        assert weights.folder.stat().st_mode & 0o777 == 0o700
    assert not any(memory.iterdir())


def test_the_two_newest_versions_are_kept(tmp_path, memory):
    with files(tmp_path, memory) as weights:
        for version in (8, 9, 10):
            weights.path(version).write_bytes(b"weights")
        weights.prune()
        assert sorted(path.name for path in weights.folder.iterdir()) == ["v10.safetensors", "v9.safetensors"]


@pytest.mark.process
def test_the_files_of_a_killed_run_are_removed_by_the_next(tmp_path, memory):
    script = "from lightning_trainer.serving.ownership import owner_tag; print(owner_tag())"
    tag = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    dead = memory / f"lightning-trainer-old-{tag}"
    dead.mkdir()
    (dead / "v1.safetensors").write_bytes(b"weights")
    with files(tmp_path, memory) as weights:
        assert list(memory.iterdir()) == [weights.folder]


def test_the_files_of_a_living_run_stay_when_the_clock_is_set(tmp_path, memory, monkeypatch):
    living = memory / f"lightning-trainer-other-{owner_tag()}"
    living.mkdir()
    created = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: created(self) + 30)  # what psutil then says
    assert remove_orphans(memory, "lightning-trainer-") == []
    assert living.is_dir()


def test_the_files_of_a_living_run_and_of_strangers_stay(tmp_path, memory):
    living = memory / f"lightning-trainer-other-{owner_tag()}"
    elsewhere = memory / f"lightning-trainer-container-{os.getpid()}.1.1"
    stranger = memory / "lightning-trainer-of-someone"
    for folder in (living, elsewhere, stranger):
        folder.mkdir()
    assert remove_orphans(memory, "lightning-trainer-") == []
    assert len(list(memory.iterdir())) == 3


def test_a_process_id_that_came_back_as_another_process_is_not_the_owner(memory):
    namespace = owner_tag().rpartition(".")[2]
    orphan = memory / f"lightning-trainer-old-{os.getpid()}.12345.{namespace}"
    orphan.mkdir()
    assert remove_orphans(memory, "lightning-trainer-") == [orphan]


def test_in_the_state_folder_those_of_a_container_that_was_killed_go_too(tmp_path, memory):
    """Before: each life of a container without room in shared memory left two versions on the disk."""
    state = tmp_path / "state"
    killed = state / f"lightning-trainer-old-{os.getpid()}.1.1"
    stranger = state / "lightning-trainer-of-someone"
    for folder in (killed, stranger):
        folder.mkdir(parents=True)
    with (
        files(tmp_path, tmp_path / "absent") as one,
        WeightFiles(state, run_id="other", version_bytes=1024, shared_memory=tmp_path / "absent") as other,
    ):
        assert sorted(state.iterdir()) == sorted((stranger, one.folder, other.folder))


def test_without_shared_memory_the_state_folder_is_used_and_named(tmp_path, caplog):
    with caplog.at_level(logging.WARNING), files(tmp_path, tmp_path / "absent") as weights:
        assert weights.folder.parent == tmp_path / "state"
    assert str(tmp_path / "state") in caplog.text


def test_too_little_room_everywhere_says_how_much_is_needed(tmp_path, memory, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shared_memory.shutil, "disk_usage", lambda path: usage(0, 0, 5 * 2**20))
    with pytest.raises(PublicationError, match="5 MiB free and two versions of the weights need 20 MiB"):
        WeightFiles(tmp_path / "state", version_bytes=10 * 2**20, shared_memory=memory)
