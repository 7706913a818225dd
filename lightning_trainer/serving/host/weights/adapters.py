"""The adapters in the engine, each with the requests that run on it.

Invariant: an adapter's weights never change under its name, and it is unloaded only when no request runs on it. The
folders that vLLM loads from are our own copies: vLLM may read one again at any time, and the trainer may remove the
original.
"""

import asyncio
import itertools
import logging
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.adapter import ADAPTER_WEIGHTS
from lightning_trainer.serving.publication import Publication

logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class LoadedAdapter:
    """An adapter that the engine has loaded, and the number of requests that run on it."""

    publication: Publication
    folder: Path
    request: Any
    """vLLM's ``LoRARequest``."""
    running: int = 0
    retired: bool = False
    """It takes no new requests."""

    @property
    def name(self) -> str:
        """Return its name in vLLM: ``POLICY@vN``, with a number appended if that name was used before."""
        return self.request.lora_name


class Adapters:
    """Loads adapters, counts the requests on each, and unloads those that are retired and idle."""

    def __init__(self, engine: Any, models: Any, scratch: Path) -> None:
        """
        Args:
            models: vLLM's ``OpenAIServingModels``, through which requests find adapters by name.
            scratch: the folder for the copies.
        """
        self._engine = engine
        self._models = models
        self._scratch = scratch
        self._numbers = itertools.count(1)
        self._used_names: set[str] = set()
        self._unloading: set[asyncio.Task[None]] = set()

    def copy(self, publication: Publication) -> Path:
        """Make the folder that vLLM loads and return it.

        Raises:
            OSError: the file cannot be read or copied.
        """
        assert publication.adapter is not None
        folder = self._scratch / "adapters" / f"{next(self._numbers)}"
        folder.mkdir(parents=True)
        shutil.copyfile(publication.path, folder / ADAPTER_WEIGHTS)
        publication.adapter.write_config(folder)
        return folder

    async def load(self, publication: Publication, folder: Path) -> LoadedAdapter:
        """Load a copy into the engine, where it answers under its name at once.

        Raises:
            EngineError: vLLM refuses it.
        """
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse
        from vllm.entrypoints.serve.lora.protocol import LoadLoRAAdapterRequest

        # vLLM's prefix cache knows an adapter by its name and folder, so neither is ever used for other weights.
        name = publication.name
        if name in self._used_names:
            name = f"{name}#{folder.name}"
        self._used_names.add(name)
        answer = await self._models.load_lora_adapter(LoadLoRAAdapterRequest(lora_name=name, lora_path=str(folder)))
        if isinstance(answer, ErrorResponse):
            raise EngineError(answer.error.message)
        return LoadedAdapter(publication, folder, self._models.lora_requests[name])

    @asynccontextmanager
    async def running_on(self, adapter: LoadedAdapter) -> AsyncIterator[None]:
        """Keep an adapter loaded while the block runs."""
        adapter.running += 1
        try:
            yield
        finally:
            adapter.running -= 1
            self._unload_when_idle(adapter)

    def retire(self, adapter: LoadedAdapter) -> None:
        """Unload an adapter once the last request on it has ended."""
        adapter.retired = True
        self._unload_when_idle(adapter)

    def _unload_when_idle(self, adapter: LoadedAdapter) -> None:
        if adapter.retired and adapter.running == 0:
            task = asyncio.create_task(self._unload(adapter), name=f"unload-{adapter.name}")
            self._unloading.add(task)
            task.add_done_callback(self._unloading.discard)

    async def _unload(self, adapter: LoadedAdapter) -> None:
        from vllm.entrypoints.serve.lora.protocol import UnloadLoRAAdapterRequest

        try:
            await self._models.unload_lora_adapter(UnloadLoRAAdapterRequest(lora_name=adapter.name))
            await self._engine.remove_lora(adapter.request.lora_int_id)
        except Exception:
            # It only costs memory: no request finds it any longer.
            logger.exception("unloading %s failed", adapter.name)
        await asyncio.to_thread(shutil.rmtree, adapter.folder, ignore_errors=True)
        logger.info("unloaded %s", adapter.name)
