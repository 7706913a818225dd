"""``GET /lightning/explain``: why a rollout was trained or not, as ``lightning-trainer explain`` shows it."""

import asyncio
import io
from typing import Any

from fastapi import APIRouter, HTTPException, Query
from rich.console import Console

from lightning_trainer.config import Config
from lightning_trainer.errors import ConfigError, StoreError
from lightning_trainer.explain.answer import Answer, Question, answer
from lightning_trainer.explain.console import show_answer
from lightning_trainer.store.store import Store


def explaining_router(store: Store, config: Config) -> APIRouter:
    """Return the route."""
    router = APIRouter()

    @router.get("/lightning/explain")
    async def explain(
        rollout: str | None = Query(None, min_length=1, max_length=512),
        last: bool = False,
        policy: str | None = Query(None, max_length=256),
        agent: str | None = Query(None, max_length=256),
        width: int = Query(160, ge=40, le=1000),
    ) -> dict[str, Any]:
        """Return ``document``, which the command prints with ``--json``, and ``text``, which it prints without."""
        question = Question(rollout, last, policy, agent)
        try:
            told = await store.scan(lambda connection: answer(connection, config, question, place="the daemon's store"))
        except (ConfigError, StoreError) as error:
            raise HTTPException(404 if isinstance(error, StoreError) else 422, str(error)) from error
        return await asyncio.to_thread(lambda: {"document": told.document(), "text": _shown(told, width)})

    return router


def _shown(told: Answer, width: int) -> str:
    text = io.StringIO()
    show_answer(told, Console(file=text, width=width, color_system=None, emoji=False))
    return text.getvalue()
