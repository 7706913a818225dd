"""What judging costs the daemon: recorded attempts through a scripted endpoint, many at a time, and its CPU time."""

import asyncio
import hashlib
import json
import tempfile
import time
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from lightning_instrumentation import semconv

from lightning_trainer.config import Config
from lightning_trainer.config.judges import RubricConfig
from lightning_trainer.judges.judging import Judged, Judging
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span, SpanStatus

_ENDPOINT_S = 0.05
"""How long the endpoint takes for an answer."""
_CRITERIA = ("found", "polite")


@dataclass(frozen=True, slots=True)
class Throughput:
    attempts: int
    seconds: float
    cpu_ms: float
    """Per attempt: reading, asking, parsing, and storing, without the endpoint's own."""


def throughput(attempts: int, *, at_once: int) -> Throughput:
    """Judge ``attempts`` attempts by a rubric; every one of them has to get its reward."""
    ours, theirs = get_context("spawn").Pipe()
    endpoint = get_context("spawn").Process(target=_serve, args=(theirs,), daemon=True)
    endpoint.start()
    try:
        return asyncio.run(_judge(ours.recv(), attempts, at_once))
    finally:
        endpoint.terminate()
        endpoint.join()


async def _judge(url: str, count: int, at_once: int) -> Throughput:
    criteria = [{"name": name, "says": "It does."} for name in _CRITERIA]
    told = {"name": "helpful", "kind": "rubric", "model": "m", "base_url": url, "concurrency": at_once}
    config = RubricConfig.model_validate({**told, "criterion": criteria})
    with tempfile.TemporaryDirectory(prefix="lightning-bench-") as folder:
        async with SqliteStore(Path(folder) / "lightning.sqlite") as store:
            for number in range(count):
                await store.append(_attempt(number))
            attempts = await store.attempts()
            judge = make_judge(config, engines_of(Config(), {}.__getitem__))
            judging, budget = Judging(judge, store, store.spans_of_trace), Budget()
            places = asyncio.Semaphore(at_once)

            async def one(attempt: Any) -> list[Judged]:
                async with places:
                    spans = await store.spans_of_attempts([attempt.attempt_id])
                    return await judging.judge_group(spans, [attempt], budget)

            began, cpu = time.perf_counter(), time.process_time()
            found = await asyncio.gather(*map(one, attempts))
            seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
            await judging.close()
    assert [[verdict.value for verdict in verdicts] for verdicts in found] == [[0.5]] * count
    return Throughput(count, seconds, 1000 * cpu_s / count)


def _attempt(number: int) -> list[Span]:
    name = f"a{number}"
    digest = hashlib.blake2b(name.encode(), digest_size=16).hexdigest()
    about = {semconv.ROLLOUT_ID: f"r-{name}", semconv.ATTEMPT_ID: name, semconv.TASK_ID: f"t{number}"}
    start = 1_790_000_000_000_000_000 + number * 10_000
    root = Span(digest, digest[:16], None, "rollout", start, start + 9000, {**about, semconv.ROLLOUT_ROOT: True})
    said: list[dict[str, Any]] = []
    spans = [root]
    for turn in range(3):
        said.append(_message("user", f"Where is parcel {number}, and what of it ({turn})? " + "It is urgent. " * 20))
        answer = _message("assistant", f"Parcel {number} is in Leipzig ({turn}). " + "It will come tomorrow. " * 10)
        attributes = {
            **about,
            semconv.OPERATION: semconv.CHAT,
            semconv.AGENT_NAME: "support",
            semconv.INPUT_MESSAGES: json.dumps(said),
            semconv.OUTPUT_MESSAGES: json.dumps([{**answer, "finish_reason": "stop"}]),
        }
        at = start + 1000 * (turn + 1)
        call = Span(digest, f"{number:012x}{turn + 1:04x}", root.span_id, "chat", at, at + 500, attributes)
        spans.append(call)
        said.append(answer)
    return [replace(span, status=SpanStatus.OK) for span in spans]


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _serve(connection: Connection) -> None:
    from aiohttp import web

    verdicts = [
        {"criterion": name, "reason": "It says so.", "verdict": number == 0} for number, name in enumerate(_CRITERIA)
    ]
    document = {
        "id": "1",
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": json.dumps({"verdicts": verdicts})},
            }
        ],
        "usage": {"prompt_tokens": 900, "completion_tokens": 60},
    }

    async def answer(_: web.Request) -> web.Response:
        await asyncio.sleep(_ENDPOINT_S)
        return web.json_response(document)

    async def serve() -> None:
        app = web.Application(client_max_size=2**24)
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        connection.send(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
        await asyncio.Event().wait()

    asyncio.run(serve())
