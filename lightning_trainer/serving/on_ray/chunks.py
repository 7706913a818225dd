"""Weights in chunks through the cluster's object store, into a file in the shared memory of the engine's node.

The engine keeps serving the previous version meanwhile. After the last chunk, the whole file is checked against the
publication's checksum and only then loaded: a partial file is never loaded.
"""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lightning_trainer.errors import PublicationError, TrainingError
from lightning_trainer.serving.node_files import ship
from lightning_trainer.serving.publication import Publication

Ask = Callable[..., Awaitable[Any]]
"""``await ask(method, *arguments)``: calls the engine's actor."""


class ObjectStoreChunks:
    """Transfers weights to one engine on a node other than the daemon's; a ``WeightTransport``."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._there: dict[str, str] = {}
        """The path of each transferred file on the node, by name."""
        self._served: dict[str, str] = {}
        """The name of each policy's loaded file, which the engine may read again."""

    async def bring(self, publication: Publication) -> Publication:
        name = _name(publication)
        if name not in self._there:
            try:
                await ship(Path(publication.path), name, self._in_memory)
            except TrainingError as error:
                raise PublicationError(f"{publication.name} cannot be sent to the engine: {error}") from error
            self._there[name] = await self._ask("weight_path", name)
        return replace(publication, path=self._there[name])

    async def settle(self, publication: Publication, *, served: bool) -> None:
        name = _name(publication)
        outdated: str | None = name
        if served:
            outdated, self._served[publication.policy] = self._served.get(publication.policy), name
        if outdated is not None and outdated not in self._served.values():
            self._there.pop(outdated, None)
            await self._in_memory("discard", outdated)

    async def _in_memory(self, method: str, *arguments: Any) -> Any:
        return await self._ask("in_memory", method, *arguments)


def _name(publication: Publication) -> str:
    """Return a unique name: two files of one version differ, because the first may be in use, or incomplete."""
    return f"{publication.policy}/v{publication.version}-{publication.checksum}.safetensors"
