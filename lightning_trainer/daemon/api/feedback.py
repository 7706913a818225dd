"""``GET /lightning/feedback``: who said what, and how far each is believed; ``POST /lightning/forget``: erasing it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from lightning_trainer.config import Config
from lightning_trainer.config.sections import FeedbackConfig
from lightning_trainer.errors import ForgetError, StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.prompts.quoting import quoting
from lightning_trainer.samples.feedback.review import feedback_report
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.lately import Lately
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables.rollouts import select_rated_tasks
from lightning_trainer.store.upkeep.files import STORE, set_aside_before
from lightning_trainer.store.worklist.forgetting import (
    attempts_named,
    forget_response,
    forget_rollout,
    forget_source,
    forget_task,
    forget_trace,
)
from lightning_trainer.store.worklist.settling import look
from lightning_trainer.versions.lineage import made_with


class ForgetBody(BaseModel):
    """What is posted: a source, a rollout, a task, a trace, or a response."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str | None = Field(default=None, min_length=1, max_length=256)
    rollout: str | None = Field(default=None, min_length=1, max_length=512)
    task: str | None = Field(default=None, min_length=1, max_length=512)
    trace: str | None = Field(default=None, min_length=1, max_length=512)
    response: str | None = Field(default=None, min_length=1, max_length=512)

    @model_validator(mode="after")
    def _one(self) -> "ForgetBody":
        if len(self.model_dump(exclude_none=True)) != 1:
            raise ValueError("name a source, a rollout, a task, a trace or a response, one of them")
        return self


FORGET = {
    "source": forget_source,
    "rollout": forget_rollout,
    "task": forget_task,
    "trace": forget_trace,
    "response": forget_response,
}
"""The function that erases a thing, by the thing's kind."""


def forget_and_say(connection, kind: str, name: str) -> dict:
    """Erase a thing, and return what was erased, the versions that were made with it, and the versions of prompts that
    quote it, all in one transaction.

    Args:
        kind: one of ``FORGET``.

    Raises:
        ForgetError: nothing of that name is stored.
    """
    quoted_by = quoting(connection, attempts_named(connection, kind, name))
    forgotten = FORGET[kind](connection, name, now_ns=time.time_ns())
    made = made_with(connection, forgotten.steps)
    told = [{**asdict(one), "sentence": one.sentence} for one in made]
    return {**asdict(forgotten), "made_with": told, "quoted_by": quoted_by}


def still_in(config: Config) -> list[str]:
    """Return a sentence for each file that may still have what was erased: the daemon does not write it again."""
    said = [
        f"{aside} was set aside and may still have it: delete it when you do not need it any more"
        for aside in set_aside_before(config.daemon.state_dir / STORE)
    ]
    if (journal := config.store.journal) is not None:
        each = "" if config.store.url is None else ", as does every other daemon's,"
        until = "until `lightning-trainer store backup` is run two minutes after the daemon's next start, or later"
        said.append(f"the journal {journal} still has it{each} {until}")
    return said


def report_and_tasks(connection: Connection, config: FeedbackConfig) -> dict[str, Any]:
    """Return the report on the newest feedback, with how many pieces name a task in place of a rollout."""
    tasks = select_rated_tasks(connection)
    named = {"feedback": sum(number for _, number in tasks), "such_as": tasks[0][0]} if tasks else None
    return {**feedback_report(look(connection, config, time.time_ns()), config), "task_named": named}


def feedback_api(store: Store, config: FeedbackConfig, still_there: Callable[[], list[str]] = list) -> APIRouter:
    """Return the routes.

    Args:
        still_there: returns sentences that say what still has what was erased.
    """
    router = APIRouter()

    reports = Lately(lambda: store.scan(lambda connection: report_and_tasks(connection, config)))

    @router.get("/lightning/feedback")
    async def report() -> dict:
        """Return the report on the newest feedback, or a recent one if there is so much that a new one takes long."""
        return {**await reports.get(), "age_s": reports.age_s}

    @router.post("/lightning/forget")
    async def forget(request: Request) -> JSONResponse:
        """Erase, and then answer; 404 if nothing of that name is stored."""
        try:
            body = await read_json(request, ForgetBody)
            ((kind, name),) = body.model_dump(exclude_none=True).items()
            done = await store.erase(lambda connection: forget_and_say(connection, kind, name))
            done["still_in"] = await asyncio.to_thread(still_there)
        except JsonBodyError as error:
            return error.response()
        except ForgetError as error:
            return error_response(404, str(error))
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        return JSONResponse(done)

    return router
