"""A Hugging Face id: the snapshot in the local cache, or a download where that is allowed."""

import os
from pathlib import Path

from lightning_trainer.errors import DownloadError, MissingExtraError, ModelError

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def hub_folder(model_id: str) -> Path:
    """Return the snapshot's folder.

    Raises:
        ModelError: there is no such model, it needs permission, or it is not cached and cannot be fetched.
        MissingExtraError: huggingface_hub is not installed.
    """
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        raise MissingExtraError(
            f"the model {model_id} needs huggingface_hub: pip install 'lightning-trainer[train]'"
        ) from None
    if (cached := cached_folder(model_id)) is not None:
        return cached
    if _offline():
        raise ModelError(
            f"the model {model_id} is not in the local Hugging Face cache and HF_HUB_OFFLINE is set: unset it, "
            f"or run `hf download {model_id}` where there is a network and give the folder"
        )
    try:
        return Path(snapshot_download(model_id, allow_patterns=_FILES))
    except errors.GatedRepoError:
        raise ModelError(f"the model {model_id} needs its owner's permission: ask for it and `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(
            f"there is no model {model_id} on the Hugging Face Hub, or it is private: check the id"
        ) from None
    except Exception as error:
        # requests, httpx and the hub each have their own; they all mean that it could not be had.
        raise DownloadError(
            f"the model {model_id} is not in the local cache and could not be downloaded ({type(error).__name__}): "
            f"check the network, or give a folder"
        ) from error


def cached_folder(model_id: str) -> Path | None:
    """Return the snapshot's folder where it is in the local cache; nothing is fetched."""
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        return None
    try:
        return Path(snapshot_download(model_id, allow_patterns=_FILES, local_files_only=True))
    except errors.LocalEntryNotFoundError:
        return None


def _offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
