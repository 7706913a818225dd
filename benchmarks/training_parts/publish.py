"""From a finished update to the first token that the new version samples, for all weights and for an adapter.

Counted from the moment the trainer's file is there: the engine checks, loads and proves it, and answers one request.
That is set against vLLM's own update from the same file to the same request, with nothing proven (``bare_update``): of
all weights in the same engine, in turns with ours; of an adapter in a vLLM as it comes, without our plugin, whose
products of adapters are ours. The stricter ratios are in the table too: over the bare way in the same engine, and over
its loading alone.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from capture_parts.rows import Row, at_most

from lightning_trainer.config import Config
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.publication import Publication
from lightning_trainer.serving.settings import EngineSettings, engine_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.training.remote import make_trainer
from lightning_trainer.training.settings import trainer_settings
from training_parts.bare_update import BareUpdate, offer_routes, without_plugin

TITLE = "From an update to the first token of the new version"

_MODEL = "embedded:smollm2-135m-instruct"
_VERSIONS = 6
"""The first one is not counted: it warms up what the others find warm."""
_POLICY = "measured"
_MOST = 1.5
"""Times the engine's own update."""


@dataclass(frozen=True, slots=True)
class _Bare:
    """vLLM's own update."""

    loaded_s: float
    served_s: float
    """With the first token."""


@dataclass(frozen=True, slots=True)
class _Ours:
    served_s: float
    """To the first token of the new version."""
    update_s: float
    probe_s: float


@dataclass(frozen=True, slots=True)
class _Publication:
    written_s: float
    """The trainer's export and its scoring of the probe."""
    ours: _Ours
    bare: _Bare


@dataclass(frozen=True, slots=True)
class _Measured:
    publications: list[_Publication]
    as_it_comes: list[_Bare]
    """vLLM's own updates without our plugin; none of all weights, which come in through it."""


_KINDS = {"all weights": None, "adapter of rank 16": {"rank": 16}}


def run(quick: bool = False) -> list[Row]:
    """``quick``: a random model of two layers, whose figures say only that it works."""
    model = "random:tiny" if quick else _MODEL
    offer_routes()
    return [row for kind, lora in _KINDS.items() for row in _rows(kind, asyncio.run(_measure(model, lora)), model)]


def _rows(kind: str, measured: _Measured, model: str) -> list[Row]:
    found = measured.publications[1:]
    served = statistics.median(one.ours.served_s for one in found)
    bare = statistics.median(one.bare.served_s for one in found)
    loaded = statistics.median(one.bare.loaded_s for one in found)
    own = statistics.median(one.served_s for one in measured.as_it_comes[1:] or [one.bare for one in found])

    def row(what: str, figure: float, unit: str = "s", note: str = "") -> Row:
        return Row("publish", f"{kind}: {what}", figure, unit, note=note)

    against = "of vLLM's loading of the same file and its first token, nothing proven"
    return [
        at_most("publish", f"{kind}: file to first token, over vLLM's own", served / own, _MOST, "x", against),
        row("the same, over the bare way in the same engine", served / bare, "x"),
        row("the same, over the loading alone there", served / loaded, "x"),
        row("file to first token", served, note=f"median of {len(found)} publications, {model}, bfloat16"),
        row("vLLM's own, file to first token", own),
        row("the bare way in the same engine, file to first token", bare),
        row("the loading alone there", loaded),
        row("of ours, the loading", statistics.median(one.ours.update_s for one in found)),
        row("of ours, checks and probe", statistics.median(one.ours.probe_s for one in found)),
        row("written and scored by the trainer", statistics.median(one.written_s for one in found)),
    ]


async def _measure(model: str, lora: dict[str, Any] | None) -> _Measured:
    config = Config.model_validate(
        {
            "engine": {"kv_cache_gib": 0.5, "max_model_len": 256, "max_num_seqs": 8},
            "policy": [{"name": _POLICY, "agents": ["*"], "model": model, "lora": lora}],
        }
    )
    policy = config.only_policy
    model_dir = resolve_model(policy.model, model_cache())
    with tempfile.TemporaryDirectory() as scratch, WeightFiles(Path(scratch)) as weights:
        folder = Path(scratch)
        settings = engine_settings(config, (policy,), model_dir, weights.folder, folder)
        trainer = make_trainer("inprocess", trainer_settings(config, policy, model_dir, folder))
        publications: list[Publication] = []
        try:
            await trainer.start()
            async with _engine(settings) as (engine, client):
                bare = BareUpdate(client, _POLICY, folder)
                found = []
                for version in range(1, _VERSIONS + 1):
                    began = time.perf_counter()
                    publications.append(await trainer.publish(weights.path(version), version))
                    found.append(await _publish(engine, bare, client, publications[-1], time.perf_counter() - began))
            if lora is None:
                return _Measured(found, [])
            with without_plugin():
                async with _engine(settings) as (engine, client):
                    bare = BareUpdate(client, _POLICY, folder)
                    return _Measured(found, [await _bare(bare, client, publication) for publication in publications])
        finally:
            await trainer.close()


@asynccontextmanager
async def _engine(settings: EngineSettings) -> AsyncIterator[tuple[EngineProcess, httpx.AsyncClient]]:
    engine = EngineProcess(settings)
    try:
        await engine.start()
        await engine.ready(600)
        async with httpx.AsyncClient(base_url=engine.base_url, headers=engine.headers, timeout=600) as client:
            await _first_token(client, _POLICY)
            yield engine, client
    finally:
        await engine.stop()


async def _publish(
    engine: EngineProcess, bare: BareUpdate, client: httpx.AsyncClient, publication: Publication, written_s: float
) -> _Publication:
    if publication.version % 2:
        ours = await _ours(engine, client, publication)
        return _Publication(written_s, ours, await _bare(bare, client, publication))
    own = await _bare(bare, client, publication)
    return _Publication(written_s, await _ours(engine, client, publication), own)


async def _ours(engine: EngineProcess, client: httpx.AsyncClient, publication: Publication) -> _Ours:
    began = time.perf_counter()
    report = await engine.publish(publication)
    served_by = await _first_token(client, _POLICY)
    served_s = time.perf_counter() - began
    if not report.accepted or served_by != publication.version:
        raise SystemExit(f"{publication.name} is not served (version {served_by} is): {report.reason}")
    return _Ours(served_s, report.seconds["update"], report.seconds["probe"])


async def _bare(bare: BareUpdate, client: httpx.AsyncClient, publication: Publication) -> _Bare:
    bare.prepare(publication)
    began = time.perf_counter()
    name = await bare.load(publication)
    loaded_s = time.perf_counter() - began
    await _first_token(client, name)
    served_s = time.perf_counter() - began
    await bare.unload(publication)
    return _Bare(loaded_s, served_s)


async def _first_token(client: httpx.AsyncClient, model: str) -> int | None:
    """Sample one token and return the version that did; None where it has none, being vLLM's own adapter."""
    body = {"model": model, "prompt": [1, 2, 3], "max_tokens": 1, "temperature": 1.0}
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    version = response.headers.get("x-lightning-policy-version")
    return None if version is None else int(version)
