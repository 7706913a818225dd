"""The engine without the loop around it: a step's requests sent straight to it, profiled, and its own weight update."""

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.loop.parts import seconds_of_parts
from benchmarks.loop.update_alone import UpdateAlone, update_alone
from lightning_trainer.config import Config
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.settings import EngineSettings, engine_settings
from lightning_trainer.serving.shared_memory import WeightFiles
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.training.tree.trie import build_trie


@dataclass(frozen=True, slots=True)
class Call:
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class EngineAlone:
    seconds: float
    """For the last step's requests, of which the engine has seen only the first before, to warm up."""
    sampled: int
    read: int
    """Unique tokens of those requests that were not sampled."""
    update_s: float
    first_token_s: float
    """Of the first request after the update."""
    parts: Mapping[str, float]
    """Seconds of the same requests once more, under a profiler."""


async def alone(folder: Path, config: Config, traces: Path) -> tuple[EngineAlone, UpdateAlone]:
    """Measure the engine, and the trainer in between, on what the loop left in ``folder``."""
    policy = config.only_policy
    model_dir = resolve_model(policy.model, model_cache())
    async with SqliteStore(folder / "state" / "lightning.sqlite") as store:
        steps = await store.steps(policy.name)
        spans = await store.spans_of_attempts(steps[-1].attempt_ids)
        batches = [await store.batch(policy.name, step.step) for step in steps[-2:]]
    chains: dict[str, list[Call]] = {}
    for call in read_spans(spans).calls:
        own = Call(list(call.prompt_ids), list(call.response_ids))
        chains.setdefault(call.attempt_id or "", []).append(own)
    os.environ["VLLM_SERVER_DEV_MODE"] = "1"  # without it, vLLM offers no route that empties its cache
    with WeightFiles(folder) as weights:
        settings = engine_settings(config, (policy,), model_dir, weights.folder, folder / "raw")
        engine = EngineProcess(_profiled(settings, traces))
        await engine.start()
        try:
            await engine.ready(600)
            async with httpx.AsyncClient(base_url=engine.base_url, headers=engine.headers, timeout=600) as client:
                await _complete(client, policy.name, next(iter(chains.values()))[0])
                seconds = await _all(client, policy.name, chains)
                await _post(client, "/reset_prefix_cache")
                await _post(client, "/start_profile")
                await _all(client, policy.name, chains)
                await _post(client, "/stop_profile")
                update = await update_alone(config, model_dir, batches, weights.path(1), folder / "raw", traces)
                report = await engine.publish(update.publication)
                began = time.perf_counter()
                await _complete(client, policy.name, Call([1, 2, 3], [0]))
                first_token_s = time.perf_counter() - began
        finally:
            await engine.stop()
    calls = [call for chain in chains.values() for call in chain]
    sampled = sum(len(call.answer) for call in calls)
    measured = EngineAlone(
        seconds=seconds,
        sampled=sampled,
        read=unique_tokens(calls) - sampled,
        update_s=report.seconds["update"],
        first_token_s=first_token_s,
        parts=seconds_of_parts(_trace_of_worker(traces)),
    )
    return measured, update


def unique_tokens(calls: Sequence[Call]) -> int:
    """Return how many tokens there are if common beginnings of calls count once."""
    import numpy as np

    return len(build_trie([np.array(call.prompt + call.answer) for call in calls]))


def _profiled(settings: EngineSettings, traces: Path) -> EngineSettings:
    config = {
        "profiler": "torch",
        "torch_profiler_dir": str(traces),
        "torch_profiler_with_stack": False,
        "ignore_frontend": True,
    }
    engine = settings.engine.model_copy(update={"vllm": {**settings.engine.vllm, "profiler_config": config}})
    return replace(settings, engine=engine)


def _trace_of_worker(traces: Path) -> Path:
    found = sorted(traces.glob("*.pt.trace.json*"), key=lambda path: path.stat().st_size)
    if not found:
        raise RuntimeError(f"the engine wrote no trace to {traces}")
    return found[-1]


async def _all(client: httpx.AsyncClient, model: str, chains: Mapping[str, list[Call]]) -> float:
    """Send every attempt's calls, one after the other, all attempts at once; return the seconds."""

    async def in_turn(calls: list[Call]) -> None:
        for call in calls:
            await _complete(client, model, call)

    began = time.perf_counter()
    await asyncio.gather(*(in_turn(calls) for calls in chains.values()))
    return time.perf_counter() - began


async def _complete(client: httpx.AsyncClient, model: str, call: Call) -> None:
    body = {"model": model, "prompt": call.prompt, "max_tokens": len(call.answer), "ignore_eos": True, "logprobs": 0}
    (await client.post("/v1/completions", json={**body, "temperature": 1.0})).raise_for_status()


async def _post(client: httpx.AsyncClient, path: str) -> None:
    (await client.post(path)).raise_for_status()
