"""A model is found, written once, or refused in one sentence that says what to do."""

import errno
import json
import pwd

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from lightning_trainer.errors import ConfigError, DownloadError, ModelError
from lightning_trainer.models.resolve import cached_folder, found_model, model_cache, resolve_model


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("embedded:gpt", "there is no model 'embedded:gpt'; models without a download are: embedded:smollm2"),
        ("random:", "there is no model 'random:'"),
        ("no such thing", "no folder, no Hugging Face id"),
        ("~nobody-at-all/model", "no folder, no Hugging Face id"),
        ("models/qwen--sft", "no folder, no Hugging Face id"),
        ("models/..", "no folder, no Hugging Face id"),
        ("модели/своя", "no folder, no Hugging Face id"),
        ("owner/name.git", "no folder, no Hugging Face id"),
        (f"owner/{'a' * 97}", "no folder, no Hugging Face id"),
    ],
)
def test_an_unknown_model_is_named_with_what_there_is(tmp_path, spec, said):
    with pytest.raises(ModelError) as caught:
        resolve_model(spec, tmp_path)
    assert said in str(caught.value)


def test_a_model_that_is_not_cached_is_refused_without_a_network(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match="owner/absent-model"):
        resolve_model("owner/absent-model", tmp_path)


def test_what_an_interrupted_download_left_is_completed(tmp_path, monkeypatch):
    """As what `plan` leaves in the cache, which fetches config.json alone."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--owner--name" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (refs := tmp_path / "models--owner--name" / "refs").mkdir()
    (refs / "main").write_text("abc")
    (snapshot / "config.json").write_text("{}")
    assert cached_folder("owner/name") == snapshot, "the hub's own function takes it for whole"
    assert found_model("owner/name", tmp_path) is None

    in_cache = huggingface_hub.snapshot_download

    index = {"weight_map": {"a": "model-1-of-2.safetensors", "b": "model-2-of-2.safetensors"}}
    on_the_hub = {
        **dict.fromkeys(("tokenizer.json", *index["weight_map"].values()), "{}"),
        "model.safetensors.index.json": json.dumps(index),
        "consolidated.safetensors": "the same weights, as those of the next",
        "original/model.safetensors": "",
    }

    def fetched(model_id, *, allow_patterns, local_files_only=False, revision="abc"):
        assert revision == "abc"
        for name in () if local_files_only else filter_repo_objects(on_the_hub, allow_patterns=allow_patterns):
            (snapshot / name).write_text(on_the_hub[name])
        return in_cache(model_id, allow_patterns=allow_patterns, local_files_only=True)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"not whole in the local cache \(.* has no model.safetensors.*OFFLINE is set"):
        resolve_model("owner/name", tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    assert resolve_model("owner/name", tmp_path) == snapshot
    assert sorted(path.name for path in snapshot.glob("*.safetensors")) == list(index["weight_map"].values())
    assert found_model("owner/name", tmp_path) == snapshot


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            OSError(errno.ENOSPC, "No space left on device"),
            DownloadError,
            "/hub cannot be written: No space.*make room",
        ),
        (
            OSError(errno.EROFS, "Read-only file system", "/cache/blobs/a"),
            ModelError,
            "/cache/blobs/a cannot be wr.*Read-",
        ),
        (OSError("a connection error of requests"), DownloadError, r"\(OSError\): check the network"),
    ],
)
def test_a_cache_that_cannot_be_written_is_not_taken_for_a_network_that_is_away(
    tmp_path, monkeypatch, error, kind, said
):
    def fetched(*_, local_files_only=False, **__):
        raise huggingface_hub.errors.LocalEntryNotFoundError("not here") if local_files_only else error

    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/hub")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with pytest.raises(ModelError, match=said) as caught:
        resolve_model("owner/name", tmp_path)
    assert type(caught.value) is kind, "only what may pass by itself is a reason to start again"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ((), "config.json"),
        (("config.json",), "safetensors"),
        (("config.json", "model.safetensors"), "tokenizer"),
        (
            ("adapter_config.json", "adapter_model.safetensors"),
            "is an adapter, not a model.*export --merge.*merge_and_unload",
        ),
    ],
)
def test_a_folder_that_lacks_something_is_refused(tmp_path, files, said):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ModelError, match=said):
        resolve_model(str(tmp_path), tmp_path / "cache")


@pytest.mark.process
def test_the_tiny_model_is_written_once_and_whole(tmp_path):
    folder = resolve_model("random:tiny", tmp_path)
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    written = (folder / "model.safetensors").stat().st_mtime_ns

    assert resolve_model("random:tiny", tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == written
    assert [path.name for path in tmp_path.iterdir()] == [folder.name], "nothing half-written is left"


def test_a_user_without_a_home_is_told_to_name_a_cache(monkeypatch):
    def unknown(_):
        raise KeyError("no such user")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=r"no home directory.*set HOME, or XDG_CACHE_HOME"):
        model_cache()
