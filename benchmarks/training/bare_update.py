"""vLLM's own update, through its own routes: the same file, in the same engine, with nothing of ours in between.

The file is not checked, no requests are awaited, and nothing is probed. The routes are those that ``vllm serve`` offers
for this: ``/v1/load_lora_adapter`` for an adapter, and its weight transfer for all weights.
"""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS
from lightning_trainer.serving.publication import Publication

_ROUTES = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"}
"""Without them vLLM does not offer these routes."""


def offer_routes() -> None:
    """Make engines that are started from now on offer these routes."""
    os.environ.update(_ROUTES)


@contextmanager
def without_plugin() -> Iterator[None]:
    """Make engines that are started in the block unmodified vLLM, except that they keep freed memory as ours do."""
    os.environ["VLLM_PLUGINS"] = "none"
    try:
        yield
    finally:
        del os.environ["VLLM_PLUGINS"]


class BareUpdate:
    """Updates one engine by vLLM's own routes; ``load`` is what is timed."""

    def __init__(self, client: httpx.AsyncClient, policy: str, scratch: Path) -> None:
        self._client = client
        self._policy = policy
        self._scratch = scratch

    def prepare(self, publication: Publication) -> None:
        """Make the folder that vLLM wants for an adapter, outside the timing: a trainer could write it itself."""
        if publication.adapter is not None:
            folder = self._folder(publication)
            folder.mkdir(exist_ok=True)
            shutil.copyfile(publication.path, folder / ADAPTER_WEIGHTS)
            publication.adapter.write_config(folder)

    async def load(self, publication: Publication) -> str:
        """Load the publication and return the name under which the engine answers with it."""
        if publication.adapter is not None:
            name = f"bare-{publication.version}"
            await self._post("/v1/load_lora_adapter", lora_name=name, lora_path=str(self._folder(publication)))
            return name
        await self._post("/pause?mode=abort&clear_cache=true")
        await self._post("/start_weight_update")
        await self._post("/update_weights", update_info={"paths": [publication.path]})
        await self._post("/finish_weight_update", weight_version=str(publication.version))
        await self._post("/resume")
        return self._policy

    async def unload(self, publication: Publication) -> None:
        """Unload an adapter; all weights stay."""
        if publication.adapter is not None:
            await self._post("/v1/unload_lora_adapter", lora_name=f"bare-{publication.version}")

    def _folder(self, publication: Publication) -> Path:
        return self._scratch / f"bare-{publication.version}"

    async def _post(self, path: str, **body: object) -> None:
        headers = {"Content-Type": "application/json"}
        (await self._client.post(path, content=json.dumps(body), headers=headers)).raise_for_status()
