import errno
import io
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from lightning_trainer.errors import CheckpointError, TrainingError
from lightning_trainer.training.checkpoint_folder import Manifest, read_manifest, require_written_by, writing

_MANIFEST = Manifest(policy="math", step=7)


def test_a_checkpoint_appears_whole(tmp_path):
    with writing(tmp_path / "deep" / "step-7", _MANIFEST) as folder:
        (folder / "weights").write_text("w")
        assert not (tmp_path / "deep" / "step-7").exists()
    assert read_manifest(tmp_path / "deep" / "step-7") == _MANIFEST
    assert (tmp_path / "deep" / "step-7" / "weights").read_text() == "w"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["step-7"]


def test_a_failed_save_leaves_nothing_and_keeps_what_was_there(tmp_path):
    with writing(tmp_path / "step-7", _MANIFEST) as folder:
        (folder / "weights").write_text("old")
    with pytest.raises(TrainingError, match="No space left"), writing(tmp_path / "step-7", _MANIFEST):
        raise OSError(28, "No space left on device")
    assert (tmp_path / "step-7" / "weights").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["step-7"]


def test_a_full_disk_that_torch_met_is_a_failed_save_as_well(tmp_path):
    with pytest.raises(CheckpointError, match="unexpected pos"), writing(tmp_path / "step-7", _MANIFEST):
        raise RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0")
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_of_another_number_of_processes_names_both_and_the_way_on(tmp_path):
    for rank in range(2):
        (tmp_path / f"model_world_size_2_rank_{rank}.pt").touch()
    require_written_by(tmp_path, 2, "cpu")
    with pytest.raises(TrainingError, match=r"world_size = 2 in \[training\], and now it is world_size = 4; .* export"):
        require_written_by(tmp_path, 4, "cpu")
    with pytest.raises(TrainingError, match="was written with another strategy"):
        require_written_by(tmp_path / "of-megatron", 2, "cpu")


def test_a_checkpoint_of_another_kind_of_device_names_both_and_the_way_on(tmp_path):
    part = "model_world_size_1_rank_0.pt"
    with writing(tmp_path / "step-7", replace(_MANIFEST, device="cpu")) as folder:
        (folder / part).touch()
    require_written_by(tmp_path / "step-7", 1, "cpu")
    with pytest.raises(
        TrainingError, match=r'device = "cpu" in \[training\], and now it is device = "cuda"; .* export'
    ):
        require_written_by(tmp_path / "step-7", 1, "cuda")
    with writing(tmp_path / "step-8", _MANIFEST) as folder:  # an older one does not say
        (folder / part).touch()
    require_written_by(tmp_path / "step-8", 1, "cuda")


@pytest.mark.parametrize("at", [0, 500, 999])
def test_a_flipped_bit_is_found(tmp_path, at):
    with writing(tmp_path / "step-7", _MANIFEST) as folder:
        (folder / "actor").mkdir()
        (folder / "actor" / "weights").write_bytes(bytes(1000))
    damaged = bytearray(1000)
    damaged[at] ^= 4
    (tmp_path / "step-7" / "actor" / "weights").write_bytes(damaged)
    with pytest.raises(CheckpointError, match="is damaged: actor/weights is not as it was saved"):
        read_manifest(tmp_path / "step-7")


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EMFILE, errno.EACCES])
@pytest.mark.parametrize("name", ["trainer.json", "weights"])
def test_what_cannot_be_read_for_a_moment_is_not_called_damaged(tmp_path, monkeypatch, name, number):
    with writing(tmp_path / "step-7", _MANIFEST) as folder:
        (folder / "weights").write_text("w")
    original = io.open

    def failing(file, *arguments, **options):
        if Path(file).name == name:
            raise OSError(number, os.strerror(number), str(file))
        return original(file, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(io, "open", failing)
        patched.setattr("builtins.open", failing)
        with pytest.raises(TrainingError, match=f"cannot be read now .*{os.strerror(number)}") as raised:
            read_manifest(tmp_path / "step-7")
    assert not isinstance(raised.value, CheckpointError)
    assert read_manifest(tmp_path / "step-7") == _MANIFEST


def test_a_checkpoint_that_lacks_a_file_is_damaged(tmp_path):
    with writing(tmp_path / "step-7", _MANIFEST) as folder:
        (folder / "weights").write_text("w")
    (tmp_path / "step-7" / "weights").unlink()
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        read_manifest(tmp_path / "step-7")


def test_a_checkpoint_of_a_newer_release_is_read_by_the_fields_that_are_known(tmp_path):
    document = {"format": 1, "policy": "math", "step": 7, "files": {}, "of a newer release": [1]}
    (tmp_path / "trainer.json").write_text(json.dumps(document))
    assert read_manifest(tmp_path) == _MANIFEST


def test_a_checkpoint_from_before_there_were_checksums_is_read(tmp_path):
    (tmp_path / "trainer.json").write_text(json.dumps({"format": 1, "policy": "math", "step": 7}))
    assert read_manifest(tmp_path) == _MANIFEST


def test_saving_again_replaces(tmp_path):
    for text in ("old", "new"):
        with writing(tmp_path / "step-7", _MANIFEST) as folder:
            (folder / "weights").write_text(text)
    assert (tmp_path / "step-7" / "weights").read_text() == "new"


@pytest.mark.parametrize(
    "manifest", [None, "{", json.dumps({"format": 99, "policy": "math", "step": 7}), "{}", "[]", '"x"', "7"]
)
def test_what_is_not_whole_is_refused(manifest, tmp_path):
    if manifest is not None:
        (tmp_path / "trainer.json").write_text(manifest)
    with pytest.raises(TrainingError, match=str(tmp_path)):
        read_manifest(tmp_path)
