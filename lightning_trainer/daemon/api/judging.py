"""``POST /lightning/judge``: recorded attempts judged by the daemon, on request.

The answer is a stream of JSON lines that ends with the result: a judge may take hours, and a proxy gives up a
connection on which nothing comes. A client that hangs up stops the judge; the verdicts given until then are stored.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, model_validator
from starlette.types import Receive, Scope, Send

from lightning_trainer.config import Config
from lightning_trainer.daemon.rewards.by_hand import Asked, ByHand, Progress
from lightning_trainer.errors import LightningError, NothingToJudgeError, StoreError
from lightning_trainer.ingest.http.bodies import JsonBodyError, error_response, read_json
from lightning_trainer.judges.reliability.report import judge_report
from lightning_trainer.judges.reliability.summary import summarize
from lightning_trainer.judges.scoring_engine import EngineOf
from lightning_trainer.store.store import Store
from lightning_trainer.types import SpanSink

_log = logging.getLogger(__name__)

JUDGE_PATH = "/lightning/judge"
_MOST_NAMES = 1000
_AT_ONCE = 4
"""Requests; each holds some groups in memory."""
_EVERY_S = 2.0
_HEADERS = [
    (b"content-type", b"application/jsonl"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would hold back the lines, and the client would give up
]
_Name = Annotated[str, Field(min_length=1, max_length=512)]


class JudgeBody(BaseModel):
    """What is posted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    judge: _Name
    names: Annotated[list[_Name], Field(max_length=_MOST_NAMES)] = []
    """Rollouts, attempts, tasks or groups; none: all since ``since``."""
    since: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    again: bool = False
    shuffle: bool = False
    dry_run: bool = False
    """Ask no model; answer what would be asked."""
    report: bool = False
    """Ask no model; answer how reliable the judge is."""

    @model_validator(mode="after")
    def _goes_together(self) -> "JudgeBody":
        if self.shuffle and not self.again:
            raise ValueError("shuffle tells attempts in another order than before: it goes with again")
        return self


def judging_router(store: Store, sink: SpanSink, config: Config, engine_of: EngineOf) -> APIRouter:
    """Return the route.

    Args:
        sink: redacts and commits the verdicts.
        engine_of: for judges that ask a policy's own engine.
    """
    router = APIRouter()
    at_work: set[ByHand] = set()

    @router.post(JUDGE_PATH)
    async def judge(request: Request) -> Response:
        """Send lines ``{"working": {"groups": 40, "done": 3}}``, then ``{"done": {...}}`` or ``{"error": "..."}``."""
        try:
            body = await read_json(request, JudgeBody)
            hand = ByHand(config, config.named_judge(body.judge), store.scan, engine_of)
            if len(at_work) >= _AT_ONCE:
                raise JsonBodyError(429, f"{_AT_ONCE} others have attempts judged by hand: wait until one is done")
            at_work.add(hand)
            try:
                work = await _work(store, sink, hand, body)
            except BaseException:
                at_work.discard(hand)
                raise
        except JsonBodyError as error:
            return error.response()
        except NothingToJudgeError as error:
            return error_response(404, str(error))
        except StoreError as error:
            return error_response(503, str(error), retry_after_s=1)
        except LightningError as error:
            return error_response(422, str(error))
        return _Lines(work, hand.progress, lambda: at_work.discard(hand))

    return router


async def _work(store: Store, sink: SpanSink, hand: ByHand, body: JudgeBody) -> Callable[[], Awaitable[Any]]:
    """Return the function that makes the result."""
    if body.report:
        return lambda: store.scan(lambda connection: summarize(judge_report(connection, hand.by), hand.by))
    asked = Asked(body.names, body.since, body.again, body.shuffle)
    chosen = await hand.choose(asked)
    return (lambda: hand.dry_run(chosen, asked)) if body.dry_run else (lambda: hand.judge(chosen, asked, sink))


class _Lines(Response):
    """An answer that does the work while the client listens, and tells it how far that is."""

    def __init__(self, work: Callable[[], Awaitable[Any]], progress: Progress, over: Callable[[], None]) -> None:
        super().__init__()
        self._make = work
        self._progress = progress
        self._over = over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work = asyncio.ensure_future(self._make())
        tasks = (work, asyncio.create_task(self._write(work, send)), asyncio.create_task(_gone(receive)))
        try:
            await asyncio.wait(tasks[1:], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)
            self._over()

    async def _write(self, work: asyncio.Future[Any], send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        while not work.done():
            await _send_line(send, {"working": asdict(self._progress)}, more=True)
            await asyncio.wait({work}, timeout=_EVERY_S)
        await _send_line(send, _result(work), more=False)


async def _send_line(send: Send, document: dict[str, Any], *, more: bool) -> None:
    line = json.dumps(document).encode() + b"\n"
    await send({"type": "http.response.body", "body": line, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _result(work: asyncio.Future[Any]) -> dict[str, Any]:
    try:
        return {"done": asdict(work.result())}
    except LightningError as error:
        return {"error": str(error)}
    except Exception as error:
        _log.exception("judging by hand ended in an error")
        return {"error": f"{type(error).__name__}: {error}"}
