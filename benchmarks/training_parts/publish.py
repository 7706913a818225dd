"""From a finished update to the first token that the new version samples, for all weights and for an adapter.

Counted from the moment the trainer's file is there: the engine checks, loads and proves it, and answers one request.
That is set against the engine's own update, which is the loading alone.
"""

import asyncio
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from capture_parts.rows import Row, at_most

from lightning_trainer.config import Config
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.settings import engine_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.training.remote import make_trainer
from lightning_trainer.training.settings import trainer_settings

TITLE = "From an update to the first token of the new version"

_MODEL = "embedded:smollm2-135m-instruct"
_VERSIONS = 4
"""The first one is not counted: it warms up what the others find warm."""
_POLICY = "measured"
_MOST = 1.5
"""Times the engine's own update."""


@dataclass(frozen=True, slots=True)
class _Publication:
    written_s: float
    """The trainer's export and its scoring of the probe."""
    served_s: float
    """From there to the first token of the new version."""
    update_s: float
    probe_s: float


_KINDS = {"all weights": None, "adapter of rank 16": {"rank": 16}}


def run(quick: bool = False) -> list[Row]:
    """``quick``: a random model of two layers, whose figures say only that it works."""
    rows: list[Row] = []
    model = "random:tiny" if quick else _MODEL
    for kind, lora in _KINDS.items():
        found = asyncio.run(_measure(model, lora))[1:]
        served, update = _median(found, "served_s"), _median(found, "update_s")
        note = f"median of {len(found)} publications, {model}, bfloat16"
        rows += [
            at_most("publish", f"{kind}: file to first token, over the engine's update", served / update, _MOST, "x"),
            Row("publish", f"{kind}: file to first token", served, "s", note=note),
            Row("publish", f"{kind}: the engine's own update", update, "s"),
            Row("publish", f"{kind}: scoring the probe, which proves it", _median(found, "probe_s"), "s"),
            Row("publish", f"{kind}: written and scored by the trainer", _median(found, "written_s"), "s"),
        ]
    return rows


def _median(found: list[_Publication], name: str) -> float:
    return statistics.median(getattr(one, name) for one in found)


async def _measure(model: str, lora: dict[str, Any] | None) -> list[_Publication]:
    config = Config.model_validate(
        {
            "engine": {"kv_cache_gib": 0.5, "max_model_len": 256, "max_num_seqs": 8},
            "policy": [{"name": _POLICY, "agents": ["*"], "model": model, "lora": lora}],
        }
    )
    policy = config.only_policy
    model_dir = resolve_model(policy.model, model_cache())
    with tempfile.TemporaryDirectory() as folder, WeightFiles(Path(folder)) as weights:
        engine = EngineProcess(engine_settings(config, (policy,), model_dir, weights.folder, Path(folder)))
        trainer = make_trainer("inprocess", trainer_settings(config, policy, model_dir, Path(folder)))
        try:
            await engine.start()
            await engine.ready(600)
            await trainer.start()
            async with httpx.AsyncClient(base_url=engine.base_url, headers=engine.headers, timeout=600) as client:
                await _first_token(client)
                return [
                    await _publish(engine, trainer, client, weights.path(version), version)
                    for version in range(1, _VERSIONS + 1)
                ]
        finally:
            await trainer.close()
            await engine.stop()


async def _publish(
    engine: EngineProcess, trainer: Any, client: httpx.AsyncClient, path: Path, version: int
) -> _Publication:
    began = time.perf_counter()
    publication = await trainer.publish(path, version)
    written_s = time.perf_counter() - began
    began = time.perf_counter()
    report = await engine.publish(publication)
    served_by = await _first_token(client)
    served_s = time.perf_counter() - began
    if not report.accepted or served_by != version:
        raise SystemExit(f"version {version} is not served ({served_by} is): {report.reason}")
    return _Publication(written_s, served_s, report.seconds["update"], report.seconds["probe"])


async def _first_token(client: httpx.AsyncClient) -> int:
    """Sample one token and return the version that did."""
    body = {"model": _POLICY, "prompt": [1, 2, 3], "max_tokens": 1, "temperature": 1.0}
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    return int(response.headers["x-lightning-policy-version"])
