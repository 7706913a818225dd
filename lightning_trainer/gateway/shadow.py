"""Shadow mode: calls of chosen live rollouts are repeated on a candidate, and no caller waits for its answers.

The live answer is on its way before the candidate is called. The number of shadow calls in flight is limited; a call
that exceeds the limit is not repeated, only counted. The candidate's answers are recorded under a rollout and an
attempt of their own, in the mode ``shadow``, which is never trained; the caller never sees them.
"""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from dataclasses import replace

import orjson
from lightning_instrumentation import semconv

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.gateway.caller import Caller
from lightning_trainer.gateway.calls.exchange import CallRecord, Exchange
from lightning_trainer.gateway.calls.span import Sampler
from lightning_trainer.gateway.canary_route import CanaryRoute, OldVersions
from lightning_trainer.gateway.engine import sse
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.request import EngineRequest
from lightning_trainer.types import SHADOW_MARK, RolloutMode, SpanSink

_log = logging.getLogger(__name__)

_LONGEST_CALL_S = 300.0


def shadow_id(name: str, version: int) -> str:
    """Return the name of the shadow of a rollout, attempt, or group."""
    return f"{name}{SHADOW_MARK}{version}"


def shadowed(name: str, version: int) -> str | None:
    """Return the name whose shadow this is; None if it is not a shadow of that candidate."""
    live, mark, number = name.rpartition(SHADOW_MARK)
    return live if mark and number == str(version) else None


def shadow_trace(attempt_id: str) -> tuple[str, str]:
    """Return the trace id of a shadow attempt and the id of its root span."""
    digest = hashlib.blake2b(attempt_id.encode(errors="replace"), digest_size=24).hexdigest()
    return digest[:32], digest[32:]


class Shadow:
    """Repeats calls of one policy on its candidate."""

    def __init__(self, route: CanaryRoute, old_versions: OldVersions, sink: SpanSink, *, at_once: int) -> None:
        """``sink``: makes records of calls durable."""
        self._route = route
        self._old_versions = old_versions
        self._sink = sink
        self._at_once = at_once
        self._running: set[asyncio.Task[None]] = set()

    def repeat(self, request: EngineRequest, caller: Caller, policy: str, served_name: str) -> None:
        """Repeat the call on the candidate if its rollout is a shadowed one; returns at once and never raises."""
        version = self._route.shadow_for(caller.attributes)
        if version is None or semconv.ATTEMPT_ID not in caller.attributes:
            return
        if len(self._running) >= self._at_once:
            self._route.dropped += 1
            return
        task = asyncio.create_task(self._answered(version, request, caller, policy, served_name), name="shadow call")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel the calls in flight."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    async def _answered(
        self, version: int, request: EngineRequest, caller: Caller, policy: str, served_name: str
    ) -> None:
        try:
            async with asyncio.timeout(_LONGEST_CALL_S):
                await self._ask(version, request, caller, policy, served_name)
        except (EngineError, PublicationError, RefusalError, TimeoutError, orjson.JSONDecodeError) as error:
            self._route.failed += 1
            _log.info("%s@v%d did not answer a shadow call: %s", policy, version, error)
        except Exception:  # a background task: only this log reports it
            self._route.failed += 1
            _log.exception("a shadow call of %s@v%d failed with an unexpected error", policy, version)

    async def _ask(self, version: int, request: EngineRequest, caller: Caller, policy: str, served_name: str) -> None:
        lease = await self._old_versions.lease(version)
        if lease is None:
            raise EngineError("its weights are not kept")
        try:
            body = {name: value for name, value in request.body.items() if name not in ("stream", "stream_options")}
            asked = replace(request, body=body)
            exchange = Exchange(asked, _as_shadow(caller, version), Sampler(policy, version), CallRecord(self._sink))
            answer = await lease.upstream.complete(asked.api, asked.upstream(served_name))
            if not answer.is_success:
                raise EngineError(f"it answered {answer.status}")
            raw, supports = sse.without_support(answer.body or b"")
            exchange.transcript.support_known = answer.headers.get(sse.HEADER) == "1"
            exchange.transcript.add(orjson.loads(raw))
            exchange.transcript.add_supports(supports)
            await exchange.commit()
        finally:
            lease.release()


def _as_shadow(caller: Caller, version: int) -> Caller:
    """Return the caller for the record: the rollout's shadow."""
    said: Mapping[str, str] = caller.attributes
    attributes = {
        name: value for name, value in said.items() if name not in (semconv.SEQUENCE, semconv.SEQUENCE_STARTED)
    }
    for name in (semconv.ROLLOUT_ID, semconv.ATTEMPT_ID):
        attributes[name] = shadow_id(attributes[name], version)
    attributes[semconv.GROUP_ID] = attributes[semconv.ATTEMPT_ID]  # a group of its own: it is compared with no other
    attributes[semconv.ROLLOUT_MODE] = RolloutMode.SHADOW.value
    trace_id, root = shadow_trace(attributes[semconv.ATTEMPT_ID])
    return replace(caller, trace_id=trace_id, parent_span_id=root, attributes=attributes)
