"""A process that owns an engine, for a test to kill: says on standard output what it did, then waits for its end.

Its engine drains for a twentieth of a second only, so the publication below finds a request to abort.
"""

import asyncio
import json
import sys
from pathlib import Path

import httpx
from safetensors.torch import load_file, save_file

from lightning_trainer.config import EngineConfig
from lightning_trainer.serving.engine import EngineProcess
from lightning_trainer.serving.publication import Probe, Publication, Tolerance
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.shared_memory import WeightFiles, file_checksum

PROBE_IDS = ((5, 6, 7, 8), (9, 10, 11))


async def main(model_dir: Path, folder: Path) -> None:
    weights = WeightFiles(folder / "state", run_id="killed", version_bytes=2**26)
    settings = EngineSettings(
        model_dir,
        ("tiny",),
        weights.folder,
        folder,
        EngineConfig(dtype="float32", max_model_len=2048, kv_cache_gib=0.25),
        threads=1,
        drain_timeout_s=0.05,
    )
    engine = EngineProcess(settings)
    await engine.start()
    await engine.ready(600)
    async with httpx.AsyncClient(base_url=engine.base_url, headers=dict(engine.headers), timeout=120) as client:
        body = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2000, "ignore_eos": True, "n": 8}
        long_request = asyncio.create_task(client.post("/v1/completions", json=body))
        await asyncio.sleep(0.5)
        report = await engine.publish(await unchanged(engine, model_dir, weights.path(1)))
        answer = (await long_request).json()
    print(
        json.dumps(
            {
                "pid": engine.pid,
                "weights": str(weights.folder),
                "accepted": report.accepted,
                "reason": report.reason,
                "finish_reasons": [choice["finish_reason"] for choice in answer["choices"]],
            }
        ),
        flush=True,
    )
    await asyncio.Event().wait()


async def unchanged(engine: EngineProcess, model_dir: Path, path: Path) -> Publication:
    """The model's own weights as version 1: the engine's scores are the trainer's."""
    tensors = load_file(model_dir / "model.safetensors")
    save_file(tensors, path)
    probe = Probe(PROBE_IDS, await engine.score(PROBE_IDS))
    tolerance = Tolerance(max_abs=1e-3, mean_abs=1e-3)
    return Publication("tiny", 1, str(path), file_checksum(path), len(tensors), "float32", probe, tolerance)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))
