"""``/lightning/prompts``: versions of prompts, for the programs that use them and for those that improve them.

``POST /lightning/prompts/{name}`` answers a client with the live version that derives from the default in its code.
Everything is in the store, so all daemons that share one answer alike. A text that the rules of ``[daemon] redact``
would change is never stored.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse
from lightning_instrumentation import semconv
from lightning_instrumentation.redaction.rules import Redactor
from pydantic import BaseModel, ConfigDict, Field

from lightning_trainer.errors import PromptError, ProposalError, StoreError, UnknownVersionError
from lightning_trainer.ingest.http.bodies import Body, JsonBodyError, error_response, read_json
from lightning_trainer.prompts.earned import LiveEarned
from lightning_trainer.prompts.proposer import Proposers
from lightning_trainer.store import prompts
from lightning_trainer.store.prompts import LONGEST_REASON, LONGEST_TEXT, NAME, PromptVersion
from lightning_trainer.store.store import Store
from lightning_trainer.types import Span

_LARGEST = 2**62
_LONGEST_PAGE = 1000
_MOST_ATTEMPTS = 1000
"""From which one proposal may be made."""
_MOST_USED_IN = 32
_Attempt = Annotated[str, Field(min_length=1, max_length=512)]
_Name = Annotated[str, Path(pattern=f"^{NAME}$")]
_Text = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]
_Version = Annotated[int, Field(strict=True, ge=0, le=_LARGEST)]


class _Posted(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class UseBody(_Posted):
    """What a program that uses a prompt posts."""

    root: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the default in the code."""
    default: _Text | None = None
    """The default itself; None: it must not be kept, so it is not registered."""


class VersionBody(_Posted):
    """What a person posts: a version of their own."""

    text: _Text
    parent: _Version
    reason: Annotated[str, Field(min_length=1, max_length=LONGEST_REASON)] | None = None


class ProposalBody(_Posted):
    """What an optimizer posts: the parent and the attempts to make a new version from."""

    parent: _Version
    attempts: Annotated[list[_Attempt], Field(min_length=1, max_length=_MOST_ATTEMPTS)]
    seed: Annotated[int, Field(strict=True, ge=0, le=_LARGEST)] = 0


class ScoreBody(_Posted):
    """What an optimizer posts: how a version did."""

    stage: Annotated[str, Field(min_length=1, max_length=64)]
    mean: Annotated[float, Field(strict=True, allow_inf_nan=False)]
    tasks: Annotated[int, Field(strict=True, ge=1, le=2**31)]


class LiveBody(_Posted):
    """What is posted: the version to be served from now on."""

    version: _Version


def prompts_router(store: Store, redact: Redactor, proposers: Proposers | None) -> APIRouter:
    """Return the routes.

    Args:
        redact: the daemon's rules.
        proposers: make new versions; None: requests for one are answered 503.
    """
    routes = _Prompts(store, redact, proposers)
    router = APIRouter()
    router.get("/lightning/prompts")(routes.names)
    router.get("/lightning/prompts/{name}")(routes.versions)
    router.get("/lightning/prompts/{name}/earned")(routes.earned)
    router.post("/lightning/prompts/{name}")(routes.used)
    router.post("/lightning/prompts/{name}/versions")(routes.add)
    router.post("/lightning/prompts/{name}/proposals")(routes.propose)
    router.post("/lightning/prompts/{name}/versions/{version}/scores")(routes.score)
    router.post("/lightning/prompts/{name}/live")(routes.use)
    return router


class _Prompts:
    def __init__(self, store: Store, redact: Redactor, proposers: Proposers | None) -> None:
        self._store = store
        self._redact = redact
        self._proposers = proposers
        self._earned = LiveEarned(store)

    async def names(self) -> dict:
        """Return every prompt with its live versions and the number of its versions."""
        found = await self._store.scan(prompts.names)
        return {"prompts": [{"name": one.name, "live": list(one.live), "versions": one.versions} for one in found]}

    async def versions(
        self,
        name: _Name,
        before: Annotated[int, Query(ge=0, le=_LARGEST)] = _LARGEST,
        limit: Annotated[int, Query(ge=1, le=_LONGEST_PAGE)] = _LONGEST_PAGE,
        used_in: Annotated[list[_Attempt] | None, Query(max_length=_MOST_USED_IN)] = None,
    ) -> dict:
        """Return the newest ``limit`` versions (of those before ``before``), newest last; with ``used_in``, given once
        or more, only the version that the first of these attempts that asked for the prompt ran with."""
        if used_in:
            return await self._used_in(name, used_in)
        found = await self._store.scan(lambda connection: prompts.select(connection, name, before=before, newest=limit))
        if not found and before == _LARGEST:
            raise HTTPException(404, prompts.no_prompt(name))
        return {"name": name, "versions": [_shown(one) for one in found]}

    async def earned(self, name: _Name) -> dict:
        """Return what each version earned in the newest live attempts that ran with it."""
        found = await self._earned.get(name)
        return {"name": name, "earned": [asdict(one) for one in found.values()]}

    async def _used_in(self, name: str, attempts: Sequence[str]) -> dict:
        number = None
        for attempt_id in attempts:
            number = _number_in(await self._store.spans_of_attempts([attempt_id]), name)
            if number is not None:
                break
        if number is None:
            shown = f"attempt {attempts[0]!r}" + (f" and {len(attempts) - 1} others" if len(attempts) > 1 else "")
            raise HTTPException(
                404,
                f"{shown} did not ask for prompt {name!r}, or what they record has not come: call lt.prompt({name!r}, "
                "...) in the attempt itself and not where a module is imported before it, in a program that reaches "
                "this daemon, has capture_content on, and a default that no redaction changes",
            )
        try:
            found = await self._store.scan(lambda connection: prompts.select_one(connection, name, number))
        except UnknownVersionError as error:
            raise HTTPException(404, str(error)) from error
        return {"version": found.version, "text": found.text}

    async def used(self, name: _Name, request: Request) -> JSONResponse:
        """Answer a client with the live version of its root; register its default if the root is new."""

        async def look(body: UseBody) -> dict:
            found = await self._store.scan(lambda connection: prompts.live(connection, name, body.root))
            if found is None:
                found = await self._registered(name, body)
            return {"version": found.version, "text": found.text}

        return await _answer(request, UseBody, look)

    async def _registered(self, name: str, body: UseBody) -> PromptVersion:
        default, now_ns = body.default, time.time_ns()
        if default is None:
            raise JsonBodyError(
                404, f"no version of prompt {name!r} derives from this default: one is registered when its text is sent"
            )
        if await asyncio.to_thread(prompts.redacted, default, self._redact) != default:
            raise JsonBodyError(
                404,
                f"the default of prompt {name!r} is not registered: [daemon] redact would change it; use it as it is",
            )
        return await self._store.write(
            lambda connection: prompts.register(connection, name, body.root, default, now_ns)
        )

    async def add(self, name: _Name, request: Request) -> JSONResponse:
        """Add a person's version."""

        async def add_it(body: VersionBody) -> dict:
            return await self._added(name, body.text, body.parent, "person", body.reason)

        return await _answer(request, VersionBody, add_it)

    async def propose(self, name: _Name, request: Request) -> JSONResponse:
        """Add the proposer's version, made from attempts; ``spent``, also in a refusal, is what its model was asked."""

        async def propose_one(body: ProposalBody) -> dict:
            parent = await self._store.scan(lambda connection: prompts.select_one(connection, name, body.parent))
            if self._proposers is None:
                raise JsonBodyError(
                    503,
                    f"this daemon has nothing that proposes prompts: post a text of yours to {name}/versions, or try "
                    "again where one has",
                )
            made = await self._proposers.propose(name, parent, body.attempts, body.seed)
            reason = None if made.reason is None else _kept(made.reason)
            try:
                added = await self._added(name, made.text, parent.version, made.made_by, reason)
            except PromptError as error:
                raise ProposalError(str(error), spent=made.spent) from error
            return {**added, "spent": made.spent}

        return await _answer(request, ProposalBody, propose_one)

    async def score(
        self, name: _Name, version: Annotated[int, Path(ge=0, le=_LARGEST)], request: Request
    ) -> JSONResponse:
        """Write how a version did in one stage."""

        async def put(body: ScoreBody) -> dict:
            score = {body.stage: {"mean": body.mean, "tasks": body.tasks}}
            return _shown(
                await self._store.write(lambda connection: prompts.put_scores(connection, name, version, score))
            )

        return await _answer(request, ScoreBody, put)

    async def use(self, name: _Name, request: Request) -> JSONResponse:
        """Make a version live: programs get it within seconds."""

        async def use_it(body: LiveBody) -> dict:
            return _shown(await self._store.write(lambda connection: prompts.use(connection, name, body.version)))

        return await _answer(request, LiveBody, use_it)

    async def _added(self, name: str, text: str, parent: int, made_by: str, reason: str | None) -> dict:
        said = await asyncio.to_thread(prompts.check_and_redact, name, text, reason, self._redact)
        now_ns = time.time_ns()
        return _shown(
            await self._store.write(
                lambda connection: prompts.add(connection, name, text, parent, made_by, said, now_ns)
            )
        )


async def _answer(request: Request, model: type[Body], work: Callable[[Body], Awaitable[dict]]) -> JSONResponse:
    """Read the body and answer with what ``work`` makes of it, or with the reason why it made nothing."""
    try:
        return JSONResponse(await work(await read_json(request, model)))
    except JsonBodyError as error:
        return error.response()
    except UnknownVersionError as error:
        return error_response(404, str(error))
    except PromptError as error:
        return error_response(422, str(error))
    except ProposalError as error:
        return error_response(422, str(error), details={"spent": error.spent})
    except StoreError as error:
        return error_response(503, str(error), retry_after_s=1)


def _number_in(spans: Sequence[Span], name: str) -> int | None:
    """Return the version of a prompt that spans name first; None if they name none."""
    numbers = (
        span.attributes.get(semconv.PROMPT_VERSION)
        for span in spans
        if span.attributes.get(semconv.PROMPT_NAME) == name
    )
    return next((number for number in numbers if type(number) is int), None)


def _kept(reason: str) -> str:
    """Return the beginning of a model's reason, as valid UTF-8: a bad reason must not cost the proposed text."""
    return reason[:LONGEST_REASON].encode("utf-8", "replace").decode()


def _shown(version: PromptVersion) -> dict:
    shown = asdict(version)
    del shown["name"]
    return shown
