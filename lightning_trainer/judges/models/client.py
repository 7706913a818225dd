"""HTTP client of a model's endpoint, for judges and for improving prompts: from one question to one validated answer.

Time, concurrency, answer size, and retries are limited; after an unusable answer the model is asked again, with the
reason, a limited number of times. The key is read at each request and goes only to the configured host: redirects are
not followed. No message of ours contains the key, or more than the first words of the endpoint's answers.
"""

import asyncio
import copy
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeVar

import aiohttp
from lightning_instrumentation.routing.hosts import on_this_machine

from lightning_trainer.config.model_endpoint import Asked, ModelEndpoint
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.models.budget import Budget, Charge
from lightning_trainer.judges.models.structured_output import (
    Answer,
    MalformedAnswerError,
    parsed,
    schema_of,
    without_thoughts,
)
from lightning_trainer.judges.models.wire import Reply, Request, api_of

_MOST_TRIES = 5
"""Maximum tries for one question while the endpoint is busy or failing; the timeout ends them too."""
_FIRST_WAIT_S = 0.5
_LONGEST_WAIT_S = 30.0
_LONGEST_ANSWER = 1 << 20
_LONGEST_REFUSAL = 300
_BUSY = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_WRONG = frozenset({400, 422})


@dataclass(frozen=True, slots=True)
class _Failure:
    """A try without an answer, after which another try may get one."""

    said: str
    """What the endpoint said, or why it was not reached."""
    retry_after: str = ""
    learned: bool = False
    """Whether a feature that the endpoint refused is left out from now on, so that it is asked again at once."""


class ModelClient:
    """Asks one model; belongs to one event loop, and must be closed on it."""

    def __init__(self, config: ModelEndpoint) -> None:
        self._config = config
        self._api = api_of(config.api, structured=config.structured)
        self._places = asyncio.Semaphore(config.concurrency)

    async def ask(self, request: Request, budget: Budget) -> Reply:
        """Return the model's answer, unvalidated.

        Raises:
            JudgeError: it did not answer within ``timeout_s``, refused, or the budget is spent.
        """
        async with self._places:
            failure: _Failure | None = None
            try:
                async with asyncio.timeout(self._config.timeout_s) as limit:
                    for number in range(_MOST_TRIES):
                        answer = await self._answer(request, budget, limit)
                        if isinstance(answer, Reply):
                            return answer
                        failure = answer
                        if number < _MOST_TRIES - 1 and not failure.learned:
                            await asyncio.sleep(_wait_s(failure.retry_after, number))
            except TimeoutError:
                within = f"{self._place} did not answer within timeout_s = {self._config.timeout_s:g}"
                if failure is None:
                    raise JudgeError(f"{within}; raise it, or ask a faster model") from None
                raise JudgeError(f"{within}, last: {failure.said}; raise it, or ask again later") from None
            said = "" if failure is None else failure.said
            raise JudgeError(f"{self._place} did not answer in {_MOST_TRIES} tries, last: {said}")

    async def close(self) -> None:
        """Close the connections."""
        if "_session" in self.__dict__:
            await self._session.close()

    @cached_property
    def _session(self) -> aiohttp.ClientSession:
        # Created on first use, because it belongs to the running event loop.
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            cookie_jar=aiohttp.DummyCookieJar(),
            connector=aiohttp.TCPConnector(limit=self._config.concurrency),
            trace_configs=[_telling_what_is_reached()],
            trust_env=not on_this_machine(self._config.base_url),
        )

    @property
    def _place(self) -> str:
        return f"{self._config.model} at {self._config.base_url}"

    async def _answer(self, request: Request, budget: Budget, limit: asyncio.Timeout) -> "Reply | _Failure":
        """Return the result of one try.

        Raises:
            JudgeError: another try would not help.
        """
        key = self._key()  # before anything is reserved: a missing key costs nothing
        now = asyncio.get_running_loop().time
        left_s = (limit.when() or now()) - now()
        limit.reschedule(None)  # the time limit is the endpoint's: waiting for the budget does not count
        async with budget.reserved(request.tokens, request.max_tokens) as charge:
            limit.reschedule(now() + left_s)
            return await self._charged_answer(request, key, charge)

    async def _charged_answer(self, request: Request, key: str | None, charge: Charge) -> "Reply | _Failure":
        sent = copy.copy(self._api)
        reached = asyncio.Event()
        try:
            status, retry_after, body = await self._post(request, key, reached)
        except aiohttp.ClientError as error:
            return _Failure(f"{type(error).__name__}: {error}")
        finally:
            if not reached.is_set():  # also if the timeout ended the attempt to connect
                charge.usage = None
        said = f"HTTP {status}: {_without(key, body)[:_LONGEST_REFUSAL].strip()}"
        if status == 200:
            document = self._document(body)
            if (failed := _failed_status(document)) is None:
                reply = self._read(document)
                charge.usage = reply.usage or charge.usage  # not every endpoint reports it
                return reply
            status = failed
        charge.usage = None  # a refusal is free
        # Another question may have found out meanwhile what the endpoint lacks; this one was sent in the earlier form.
        if status in _WRONG and (self._api != sent or self._api.give_up(body.decode(errors="replace").lower())):
            return _Failure(said, learned=True)
        if status not in _BUSY:
            raise JudgeError(f"{self._place} refused ({said})")
        return _Failure(said, retry_after)

    async def _post(self, request: Request, key: str | None, reached: asyncio.Event) -> tuple[int, str, bytes]:
        """Return status, ``Retry-After``, and body; ``reached`` is set once there is a connection for the request."""
        url = f"{self._config.base_url}{self._api.path}"
        body = json.dumps(self._api.body(self._config.model, request)).encode()
        headers = {"content-type": "application/json", **self._api.headers(key)}
        async with self._session.post(
            url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=reached
        ) as response:
            received = bytearray()
            async for part in response.content.iter_any():
                received += part
                if len(received) > _LONGEST_ANSWER:
                    raise JudgeError(f"{self._place} answered more than {_LONGEST_ANSWER:,} bytes")
            return response.status, response.headers.get("retry-after", ""), bytes(received)

    def _key(self) -> str | None:
        name = self._config.api_key_env
        if name is None:
            return None
        if (sentence := key_that_lacks(self._config)) is not None:
            raise JudgeError(sentence)
        return os.environ[name].strip()

    def _document(self, body: bytes) -> Any:
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise self._in_another_format(error) from error

    def _read(self, document: Any) -> Reply:
        try:
            return self._api.reply(document)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise self._in_another_format(error) from error

    def _in_another_format(self, error: Exception) -> JudgeError:
        return JudgeError(
            f"{self._place} did not answer in the format of api = {self._config.api!r} ({type(error).__name__}: "
            f"{error})"
        )


def _telling_what_is_reached() -> aiohttp.TraceConfig:
    """Return a configuration that sets the event of each request (its ``trace_request_ctx``) before its first byte."""

    async def set_event(session: aiohttp.ClientSession, context: SimpleNamespace, sent: object) -> None:
        context.trace_request_ctx.set()

    telling = aiohttp.TraceConfig()
    telling.on_request_headers_sent.append(set_event)
    return telling


def key_that_lacks(config: Asked) -> str | None:
    """Return a message if the environment lacks an endpoint's key; None if none is needed, or it is set."""
    name = config.api_key_env if isinstance(config, ModelEndpoint) else None
    if name is None or os.environ.get(name, "").strip():
        return None
    return (
        f"the environment has no {name}, which api_key_env of {config.SECTION} {config.name!r} names: set it where "
        "this runs"
    )


def _failed_status(document: Any) -> int | None:
    """Return the status for a document that reports an error, which some endpoints send with status 200; None if it is
    an answer."""
    error = document.get("error") if isinstance(document, dict) else None
    if not error:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and code >= 400 else 500


def _without(key: str | None, body: bytes) -> str:
    """Return the body without the key: some endpoints repeat the key that they refuse."""
    text = body.decode(errors="replace")
    return text if key is None else text.replace(key, "...")


def _wait_s(said: str, number: int) -> float:
    """Return how long to wait before the next try: what the endpoint said, else longer each time."""
    try:
        return max(0.0, float(said))  # limited by the question's timeout
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - time.time())
    except (ValueError, TypeError):
        pass
    return min(_LONGEST_WAIT_S, _FIRST_WAIT_S * 2**number) * random.uniform(0.5, 1.0)


AnswerType = TypeVar("AnswerType", bound=Answer)
_LONGEST_REPEATED = 4000
"""Characters of an unusable answer that are shown to the model again."""


async def ask(
    client: ModelClient,
    config: ModelEndpoint,
    budget: Budget,
    *,
    system: str,
    question: str,
    shape: type[AnswerType],
    check: Callable[[AnswerType], None] = lambda answer: None,
) -> AnswerType:
    """Return an answer of the shape that passes the check.

    Args:
        check: raises MalformedAnswerError if an answer of the right shape is still unusable.

    Raises:
        MalformedAnswerError: there is no such answer after ``retries`` more questions.
        JudgeError: the endpoint does not answer, or the budget is spent.
    """
    schema = schema_of(shape)
    messages: list[tuple[str, str]] = [("user", question)]
    for number in range(config.retries + 1):
        request = Request(system, tuple(messages), schema, config.max_answer_tokens, config.temperature)
        reply = await client.ask(request, budget)
        try:
            answer = _usable(reply, shape, config.max_answer_tokens)
            check(answer)
            return answer
        except MalformedAnswerError as error:
            if number == config.retries:
                times = "once" if number == 0 else f"{number + 1} times"
                more = "; raise max_answer_tokens" if reply.cut else ""
                raise MalformedAnswerError(
                    f"{config.model} was asked {times}, and its answer cannot be used: {error}{more}"
                ) from error
            briefly = " and more briefly" if reply.cut else ""
            again = (
                f"Your answer cannot be used: {error}. Answer again{briefly}, with one JSON object of the schema "
                "and no more."
            )
            # Alternating turns: no format allows an empty answer or two consecutive messages of one role.
            messages = [
                messages[0],
                ("assistant", without_thoughts(reply.text)[:_LONGEST_REPEATED].strip() or "(nothing)"),
                ("user", again),
            ]
    raise AssertionError("the last try returns or raises")


def _usable(reply: Reply, shape: type[AnswerType], max_tokens: int) -> AnswerType:
    if reply.cut:
        raise MalformedAnswerError(f"it was cut off at {max_tokens} tokens")
    if not without_thoughts(reply.text).strip():
        after = " after its thoughts" if reply.text.strip() else ""
        raise MalformedAnswerError(f"it is empty{after}, and ended with {reply.ended!r}")
    return parsed(reply.text, shape)
