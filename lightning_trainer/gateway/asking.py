"""Asks an engine for the answer to a call: that of the live version, of the version that the caller names, or of a
candidate.

If a candidate's engine does not answer, the caller loses seconds, not the answer: the live version is asked instead,
also for the rest of the rollout. The canary counts the calls that the live version could answer and the candidate could
not. It counts none while the live version's engine is down or asleep, because an adapter that is a candidate has the
same engine.
"""

import logging

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.gateway.calls.exchange import Exchange
from lightning_trainer.gateway.calls.slots import Slot
from lightning_trainer.gateway.engine.conversation import conversation_of
from lightning_trainer.gateway.engine.response import EngineResponse
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.gateway.request import EngineRequest, unknown_model

_log = logging.getLogger(__name__)

_CANDIDATE_WAIT_S = 2.0
"""How long a call waits for a candidate's engine that is not ready, before the live version is asked instead."""


async def ask(exchange: Exchange, policy: ServedPolicy, slot: Slot) -> EngineResponse:
    """Return an engine's answer, which may be an error of its own; the slot holds the call's lease until the call ends.

    Raises:
        EngineError: no engine answers.
        PublicationError: what is stored of the requested version cannot be read.
        RefusalError: there is no such version.
    """
    route, caller = policy.canary, exchange.caller.attributes
    candidate = None if route is None or exchange.request.version is not None else route.version_for(caller)
    if route is None or candidate is None:
        return await _answer(exchange, policy, await _serving(exchange.request, policy, slot))
    answer = await _candidates_answer(candidate, exchange, policy, slot)
    if answer is None:
        route.stay(caller)
        live_is_there = await _is_ready(policy.upstream)
        answer = await _answer(exchange, policy, policy.upstream)
        route.failed += live_is_there and answer.is_success
    return answer


async def _is_ready(upstream: Upstream) -> bool:
    try:
        await upstream.ready(0.0)
    except EngineError:
        return False
    return True


async def _candidates_answer(
    version: int, exchange: Exchange, policy: ServedPolicy, slot: Slot
) -> EngineResponse | None:
    """Return a candidate's answer; None if it has none, or an error that is not the caller's."""
    try:
        lease = None if policy.old_versions is None else await policy.old_versions.lease(version)
        if lease is None:
            raise EngineError("its weights are not kept")
        slot.also_release(lease.release)
        answer = await _answer(exchange, policy, lease.upstream, wait_s=_CANDIDATE_WAIT_S)
        if answer.status < 500:
            return answer
        raise EngineError(f"it answered {answer.status}")
    except (EngineError, PublicationError) as error:
        _log.warning("%s@v%d does not answer, and the live version does: %s", policy.name, version, error)
        return None


async def _serving(asked: EngineRequest, policy: ServedPolicy, slot: Slot) -> Upstream:
    """Return the engine of the requested version; the slot holds its lease until the call ends."""
    if asked.version is None:
        return policy.upstream
    await policy.upstream.ready()  # only then does it say which version is live
    live = await policy.upstream.live_version(policy.name)
    if live is None or live == asked.version:
        return policy.upstream
    lease = None if policy.old_versions is None else await policy.old_versions.lease(asked.version)
    if lease is None:
        raise unknown_model(asked.model, policy.models(live))
    slot.also_release(lease.release)
    return lease.upstream


async def _answer(
    exchange: Exchange, policy: ServedPolicy, upstream: Upstream, *, wait_s: float | None = None
) -> EngineResponse:
    """Return an engine's answer to the request, or to the one that is made instead if the engine refuses it."""
    served_name, conversation = policy.served_name or policy.name, conversation_of(exchange.caller, exchange.request)
    while True:
        asked = exchange.request
        body = asked.upstream(served_name)
        if asked.body.get("stream") in (None, False):
            answer = await upstream.complete(asked.api, body, conversation, queue_timeout_s=wait_s)
        else:
            answer = await upstream.open(asked.api, body, conversation, queue_timeout_s=wait_s)
            if not answer.headers.get("content-type", "").startswith("text/event-stream"):
                # The engine reads some odd values of `stream` as false.
                await answer.read()
        instead = asked.instead(answer.status, answer.body)
        if instead is None:
            return answer
        exchange.request = instead
