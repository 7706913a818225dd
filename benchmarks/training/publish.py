"""From a finished update to the first token that the new version samples, for all weights and for an adapter.

The time counts from the moment the trainer's file is complete: the engine checks, loads, and proves it, and answers one
request, an agent's: its prompt is as long as the shared one of section ``tree``. With a prompt of three tokens, which
no agent sends, the proof (a pass over 68 tokens) weighs most: that is in the table too.

It is compared with vLLM's own update from the same file to the same request, with nothing proven (``bare_update``): of
all weights in the same engine, in turns with ours; of an adapter in an unmodified vLLM, without our plugin, which has
its own products for adapters. The stricter ratio, over the bare way in our engine, is given for both.
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

from benchmarks.common.rows import Row, at_most
from benchmarks.training.bare_update import BareUpdate, offer_routes, without_plugin
from lightning_trainer.config import Config
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.publication import Publication
from lightning_trainer.serving.settings import EngineSettings, engine_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.training.remote import make_trainer
from lightning_trainer.training.settings import trainer_settings

TITLE = "From an update to the first token of the new version"

_MODEL = "embedded:smollm2-135m-instruct"
_PROMPTS = {"an agent's prompt of 240 tokens": 240, "a prompt of 3 tokens": 3}
"""Requests that the new version answers; the goal is for the first."""
_EACH = 5
"""Publications for each; one more comes first, to warm up what the others find warm."""
_POLICY = "measured"
_MOST = 1.5
"""At most so many times the engine's own update."""


@dataclass(frozen=True, slots=True)
class _Bare:
    """vLLM's own update."""

    loaded_s: float
    served_s: float
    """Until the first token, the loading included."""


@dataclass(frozen=True, slots=True)
class _Ours:
    served_s: float
    """Until the first token of the new version."""
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
    """``_EACH`` for each prompt, one after the other."""
    as_it_comes: list[_Bare]
    """vLLM's own updates without our plugin; empty for all weights, which can be loaded only through it."""


_KINDS = {"all weights": None, "adapter of rank 16": {"rank": 16}}


def run(quick: bool = False) -> list[Row]:
    """``quick``: a random model of two layers, whose figures only show that it works."""
    model = "random:tiny" if quick else _MODEL
    offer_routes()
    return [row for kind, lora in _KINDS.items() for row in _rows(kind, asyncio.run(_measure(model, lora)), model)]


def _rows(kind: str, measured: _Measured, model: str) -> list[Row]:
    rows: list[Row] = []
    for number, prompt in enumerate(_PROMPTS):
        counted = slice(number * _EACH, (number + 1) * _EACH)
        found, as_it_comes = measured.publications[counted], measured.as_it_comes[counted]
        served = statistics.median(one.ours.served_s for one in found)
        bare = statistics.median(one.bare.served_s for one in found)
        own = statistics.median(one.served_s for one in as_it_comes or [one.bare for one in found])
        note = f"median of {len(found)} publications, {model}, bfloat16"
        what = f"{kind}, {prompt}: file to first token"
        over = f"{what}, over vLLM's own, which proves nothing"
        rows += [
            Row("publish", over, served / own, "x") if number else at_most("publish", over, served / own, _MOST, "x"),
            Row("publish", f"{what}, over the bare way in our engine", served / bare, "x"),
            Row("publish", what, served, "s", note=note),
            Row("publish", f"{what}, vLLM's own", own, "s"),
            Row("publish", f"{what}, the bare way in our engine", bare, "s"),
        ]
    found = measured.publications
    parts = {
        "the loading alone": statistics.median(one.bare.loaded_s for one in found),
        "of ours, the loading": statistics.median(one.ours.update_s for one in found),
        "of ours, checks and probe": statistics.median(one.ours.probe_s for one in found),
        "written and scored by the trainer": statistics.median(one.written_s for one in found),
    }
    return [*rows, *(Row("publish", f"{kind}: {what}", figure, "s") for what, figure in parts.items())]


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
                for version, prompt in enumerate(_prompts(), start=1):
                    began = time.perf_counter()
                    publications.append(await trainer.publish(weights.path(version), version))
                    written_s = time.perf_counter() - began
                    found.append(await _publish(engine, bare, client, publications[-1], prompt, written_s))
            if lora is None:
                return _Measured(found[1:], [])
            with without_plugin():
                async with _engine(settings) as (engine, client):
                    bare = BareUpdate(client, _POLICY, folder)
                    pairs = zip(publications, _prompts(), strict=True)
                    own = [await _bare(bare, client, publication, prompt) for publication, prompt in pairs]
                    return _Measured(found[1:], own[1:])
        finally:
            await trainer.close()


def _prompts() -> list[int]:
    """Return the prompts' lengths, in the order of the publications; the first one warms up."""
    lengths = list(_PROMPTS.values())
    return [lengths[0], *(length for length in lengths for _ in range(_EACH))]


@asynccontextmanager
async def _engine(settings: EngineSettings) -> AsyncIterator[tuple[EngineProcess, httpx.AsyncClient]]:
    engine = EngineProcess(settings)
    try:
        await engine.start()
        await engine.ready(600)
        async with httpx.AsyncClient(base_url=engine.base_url, headers=engine.headers, timeout=600) as client:
            # Begin with the long prompt: with the quick run's model, unmodified vLLM does not survive a short first
            # one, because it lacks what serving/host/plugin.py asks the kernel for.
            await _first_token(client, _POLICY, max(_PROMPTS.values()))
            yield engine, client
    finally:
        await engine.stop()


async def _publish(
    engine: EngineProcess,
    bare: BareUpdate,
    client: httpx.AsyncClient,
    publication: Publication,
    prompt: int,
    written_s: float,
) -> _Publication:
    if publication.version % 2:
        ours = await _ours(engine, client, publication, prompt)
        return _Publication(written_s, ours, await _bare(bare, client, publication, prompt))
    own = await _bare(bare, client, publication, prompt)
    return _Publication(written_s, await _ours(engine, client, publication, prompt), own)


async def _ours(engine: EngineProcess, client: httpx.AsyncClient, publication: Publication, prompt: int) -> _Ours:
    began = time.perf_counter()
    report = await engine.publish(publication)
    served_by = await _first_token(client, _POLICY, prompt)
    served_s = time.perf_counter() - began
    if not report.accepted or served_by != publication.version:
        raise SystemExit(f"{publication.name} is not served (version {served_by} is): {report.reason}")
    return _Ours(served_s, report.seconds["update"], report.seconds["probe"])


async def _bare(bare: BareUpdate, client: httpx.AsyncClient, publication: Publication, prompt: int) -> _Bare:
    bare.prepare(publication)
    began = time.perf_counter()
    name = await bare.load(publication)
    loaded_s = time.perf_counter() - began
    await _first_token(client, name, prompt)
    served_s = time.perf_counter() - began
    await bare.unload(publication)
    return _Bare(loaded_s, served_s)


async def _first_token(client: httpx.AsyncClient, model: str, prompt: int) -> int | None:
    """Sample one token and return the version that sampled it; None if there is none, as with vLLM's own adapter."""
    body = {"model": model, "prompt": list(range(1, prompt + 1)), "max_tokens": 1, "temperature": 1.0}
    response = await client.post("/v1/completions", json=body)
    response.raise_for_status()
    version = response.headers.get("x-lightning-policy-version")
    return None if version is None else int(version)
