"""The request handler: from the caller to the engine, and back as a response.

Refused here: a body that is not JSON (400, 415), arrives too slowly (408), is too large (413), or names another model
(404); a call beyond the concurrency limit (429); and any call if the engine is not ready within the queue timeout
(503). The engine validates everything else, and its errors are passed on.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from fastapi import Request, Response
from lightning_instrumentation import semconv

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.gateway.asking import ask
from lightning_trainer.gateway.caller import Caller, read_caller
from lightning_trainer.gateway.calls.disconnect import CallerGoneError, unless_gone
from lightning_trainer.gateway.calls.exchange import CallRecord, Exchange
from lightning_trainer.gateway.calls.retries import Retries, retry_key
from lightning_trainer.gateway.calls.slots import Slot, Slots
from lightning_trainer.gateway.calls.span import Sampler
from lightning_trainer.gateway.engine import sse
from lightning_trainer.gateway.engine.conversation import conversation_of
from lightning_trainer.gateway.engine.response import EngineResponse
from lightning_trainer.gateway.errors import RefusalError, made_again, unavailable
from lightning_trainer.gateway.media import refuse_unseen
from lightning_trainer.gateway.policies import ServedPolicies, ServedPolicy
from lightning_trainer.gateway.protocols.anthropic_request import too_long_unedited
from lightning_trainer.gateway.protocols.registry import Answer, Api
from lightning_trainer.gateway.relay import RelayResponse
from lightning_trainer.gateway.request import EngineRequest, read_body_object, unknown_model
from lightning_trainer.ingest.http.bodies import BodyTooLargeError, BodyTooSlowError, read_body
from lightning_trainer.ingest.http.rollout_urls import RolloutUrl, names_in, rollout_url
from lightning_trainer.types import SpanSink

_POLICY_HEADER = "x-lightning-policy"
_VERSION_HEADER = "x-lightning-policy-version"
_KEPT_HEADER = "x-lightning-kept-tokens"
_PASSED_HEADERS = ("retry-after", _POLICY_HEADER, _VERSION_HEADER)
_BODY_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class GatewayHandler:
    """Answers calls to the served policies."""

    policies: ServedPolicies
    sink: SpanSink
    max_body_bytes: int
    slots: Slots
    retries: Retries

    async def answer(self, request: Request, api: Api) -> Response:
        """Answer a call."""
        try:
            return await self._answer(request, api)
        except RefusalError as refusal:
            return _error(refusal.status, api.error_body(refusal.status, refusal.body), refusal.headers)

    async def count(self, request: Request, api: Api) -> Response:
        """Answer how many tokens the prompt of a call would have, as the engine renders it; nothing is sampled."""
        slot = None
        try:
            place = _place(request)
            slot = self.slots.take()
            body = read_body_object(await self._body(request))
            caller = read_caller(request.headers, place)
            chosen = self.policies.choose(body.get("model"), caller.attributes.get(semconv.AGENT_NAME))
            asked = api.read({"max_tokens": 1, **body}, chosen.version)
            refuse_unseen(asked, chosen.policy)
            counted = await _tokenized(asked, caller, chosen.policy)
            if isinstance(counted, EngineResponse):
                return _engine_error(counted, api, {})
            return Response(orjson.dumps(api.counted(counted)), media_type="application/json")
        except RefusalError as refusal:
            return _error(refusal.status, api.error_body(refusal.status, refusal.body), refusal.headers)
        finally:
            if slot is not None:
                slot.release()

    async def _answer(self, request: Request, api: Api) -> Response:
        place = _place(request)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type != "application/json":
            raise RefusalError(415, f"content type {media_type or 'missing'!r}: send application/json")
        slot = self.slots.take()
        response: Response | None = None
        try:
            raw = await self._body(request)
            body = read_body_object(raw)
            caller = read_caller(request.headers, place)
            chosen = self.policies.choose(body.get("model"), caller.attributes.get(semconv.AGENT_NAME))
            policy, asked = chosen.policy, api.read(body, chosen.version)
            refuse_unseen(asked, policy)
            if place is not None:
                asked = asked.asking(place.sampling)
            call_record = CallRecord(self.sink)
            exchange = Exchange(asked, caller, Sampler(policy.name, None), call_record)
            if (key := retry_key(request.scope["path"], request.headers, raw, caller.attributes)) is not None:
                await self.retries.begin(key, call_record)
            del raw
            answer = api.answer(body, asked, exchange.transcript, policy.served_name or policy.name)
            forwarding = self._forward(exchange, policy, answer, api, slot)
            try:
                response = await unless_gone(request.receive, call_record.abandoned, forwarding)
            except CallerGoneError as error:
                await exchange.end_without_caller(str(error))
                if call_record.abandoned.done():
                    raise made_again() from error
                return Response(status_code=499)
            except RefusalError:
                raise
            except Exception:
                # A bug of ours after the record was written: the caller got no answer, so the call is not a sample.
                if call_record.written:
                    await exchange.end_without_caller("the gateway failed on the answer")
                raise
            return response
        finally:
            if not isinstance(response, RelayResponse):  # a RelayResponse releases its slot when it ends
                slot.release()

    async def _body(self, request: Request) -> bytes:
        try:
            async with asyncio.timeout(_BODY_TIMEOUT_S):
                return await read_body(request.stream(), limit=self.max_body_bytes)
        except BodyTooLargeError as error:
            raise RefusalError(413, str(error), code="body_too_large") from error
        except BodyTooSlowError as error:  # is a TimeoutError as well
            raise RefusalError(408, str(error), retry_after_s=1) from error
        except TimeoutError as error:
            raise RefusalError(
                408, f"the body did not arrive within {_BODY_TIMEOUT_S:.0f} s", retry_after_s=1
            ) from error

    async def _forward(
        self, exchange: Exchange, policy: ServedPolicy, answer: Answer, api: Api, slot: Slot
    ) -> Response:
        if (limit := exchange.request.edited_from) is not None:
            counted = await _tokenized(exchange.request, exchange.caller, policy)
            if isinstance(counted, int) and counted >= limit:
                raise too_long_unedited(counted, limit)
        try:
            upstream = await ask(exchange, policy, slot)
        except (EngineError, PublicationError) as error:
            raise unavailable(str(error)) from error
        headers = {name: upstream.headers[name] for name in _PASSED_HEADERS if name in upstream.headers}
        if upstream.is_error:
            return _engine_error(upstream, api, headers)
        if not upstream.is_success:
            message = f"the engine answered {upstream.status}, which is neither an answer nor an error"
            raise RefusalError(502, message, kind="engine_error")
        exchange.sampler = _sampler(upstream.headers, policy.name)
        try:
            _check_version(exchange, policy)
        except RefusalError:
            upstream.close()
            raise
        if policy.shadow is not None and exchange.request.version is None:
            served_name = policy.served_name or policy.name
            policy.shadow.repeat(exchange.request, exchange.caller, policy.name, served_name)
        exchange.transcript.support_known = upstream.headers.get(sse.HEADER) == "1"
        if upstream.body is None:
            return RelayResponse(upstream, exchange, answer, headers=headers, ended=slot.release)
        try:
            raw, supports = sse.without_support(upstream.body)
            document = orjson.loads(raw)
        except orjson.JSONDecodeError as error:
            raise RefusalError(502, f"the engine's answer is not JSON: {error}", kind="engine_error") from error
        exchange.transcript.add(document)
        exchange.transcript.add_supports(supports)
        await exchange.commit()
        return Response(answer.whole(raw, document), upstream.status, headers, "application/json")


async def _tokenized(asked: EngineRequest, caller: Caller, policy: ServedPolicy) -> int | EngineResponse:
    """Return the number of prompt tokens, or the engine's answer if it is an error. If the engine refuses the request,
    the one that is made instead is counted."""
    served_name, conversation = policy.served_name or policy.name, conversation_of(caller, asked)
    while True:
        try:
            answer = await policy.upstream.complete("/tokenize", asked.tokenize(served_name), conversation)
        except (EngineError, PublicationError) as error:
            raise unavailable(str(error)) from error
        if answer.is_success:
            return len(orjson.loads(answer.body or b"")["tokens"])
        instead = asked.instead(answer.status, answer.body)
        if instead is None:
            return answer
        asked = instead


def _place(request: Request) -> RolloutUrl | None:
    try:
        return rollout_url(names_in(request.path_params, request.scope.get("raw_path")))
    except ValueError as error:
        raise RefusalError(400, str(error)) from error


def _engine_error(upstream: EngineResponse, api: Api, headers: Mapping[str, str]) -> Response:
    content_type = upstream.headers.get("content-type")
    try:
        body = orjson.loads(upstream.body or b"")
        changed = api.error_body(upstream.status, body)
    except (orjson.JSONDecodeError, AttributeError):
        body = changed = None
    if changed is body:
        return Response(upstream.body, upstream.status, dict(headers), content_type)
    return _error(upstream.status, changed, headers)


def _error(status: int, body: Any, headers: Mapping[str, str]) -> Response:
    return Response(orjson.dumps(body), status, dict(headers), "application/json")


def _sampler(headers: Mapping[str, str], policy: str) -> Sampler:
    version, kept = headers.get(_VERSION_HEADER, ""), headers.get(_KEPT_HEADER, "")
    return Sampler(
        headers.get(_POLICY_HEADER, policy),
        int(version) if version.isdecimal() else None,
        int(kept) if kept.isdecimal() else 0,
    )


def _check_version(exchange: Exchange, policy: ServedPolicy) -> None:
    """Check that the requested version answers: it may have changed while the request waited."""
    wanted, got = exchange.request.version, exchange.sampler.version
    if wanted is None or got is None or wanted == got:
        return
    known, model = policy.models(got), exchange.request.model
    if f"{policy.name}@v{wanted}" in known:
        raise unavailable(f"{model} was replaced by {policy.name}@v{got} while this call waited; call it again")
    raise unknown_model(model, known)
