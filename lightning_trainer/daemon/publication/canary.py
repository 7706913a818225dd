"""The canary: a candidate answers a share of live rollouts until what they earned decides whether it answers all.

Training waits for the decision, as it does for the guard's. If the daemon ends meanwhile, the comparison starts over
with the next one; a decision stands, so that no restart gives users a version again that was held back.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.daemon.publication.candidate_serving import serve_candidate
from lightning_trainer.daemon.publication.old_adapters import OldAdapters
from lightning_trainer.daemon.publication.old_versions import OldVersionEngine
from lightning_trainer.daemon.publication.shadow_rollouts import Shadows, settle
from lightning_trainer.daemon.rewards.judges import CanaryJudges, judges_of
from lightning_trainer.errors import LightningError, StoreError
from lightning_trainer.gateway.canary_route import CanaryRoute
from lightning_trainer.judges.judging import Judging
from lightning_trainer.serving.publication import Publication
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import canaries
from lightning_trainer.store.tables.canaries import CanaryRecord
from lightning_trainer.store.tables.spans import attempts_since, select_of_attempts
from lightning_trainer.types import Attempt, Span, SpanSink
from lightning_trainer.versions.live_rollouts import (
    Finding,
    LiveRollout,
    Usual,
    judge_candidate,
    judge_shadow,
    read_rollouts,
    usual,
)
from lightning_trainer.versions.sequential import Decision

_log = logging.getLogger(__name__)

_START_S = 600.0
"""Longest time that a candidate may take until it answers."""
_AT_ONCE = 100
_BEFORE = 500
_MOST_ASKED = 3
"""How often judges are asked about a rollout that they gave no reward: the cause may pass, or never."""
_ASK_AGAIN_S = 60.0
_MOST_UNANSWERED = 10
"""Calls that a candidate may leave to the live version, whatever their share: an engine may be restarted once."""


@dataclass(slots=True)
class _Seen:
    policy: PolicyConfig
    """With the rewards that the candidate was trained with."""
    rollouts: dict[str, LiveRollout] = field(default_factory=dict)
    """By attempt id: those that can be counted, with a reward or without."""
    others: set[str] = field(default_factory=set)
    """Attempts that say nothing about either version."""
    last_span: int = -1
    judged: dict[str, tuple[int, float]] = field(default_factory=dict)
    """How often judges were asked about these, and when last (seconds, monotonic)."""
    judging: asyncio.Task[None] | None = None
    """Asks the judges, apart from the loop: a judge that hangs must not hide harm, or hold up a rollback."""
    in_question: frozenset[str] = frozenset()
    """The rollouts that ``judging`` asks about. They count together once all answers are there: the first answers may
    all be about one version."""
    shadows: Shadows = field(default_factory=Shadows)


class Canary:
    """Compares candidates of one policy with what is live, on live traffic."""

    def __init__(
        self,
        policy: PolicyConfig,
        config: CanaryConfig,
        *,
        store: Store,
        route: CanaryRoute,
        old_versions: OldVersionEngine | OldAdapters,
        judges: Mapping[str, Judging],
        sink: SpanSink,
        say: Callable[[str], None],
        interrupted: Callable[[], Awaitable[bool]],
        promoted: Callable[[int], bool] = lambda version: False,
        look_every_s: float = 2.0,
    ) -> None:
        """
        Args:
            route: what the gateway asks.
            judges: all of the daemon's, by name. Training, which usually asks them, waits meanwhile.
            sink: where the ends of shadow rollouts go.
            say: is told when a canary begins, and why judges gave no reward.
            interrupted: whether another version was asked for meanwhile (a rollback).
            promoted: whether a person wants the candidate live, whatever was seen of it.
        """
        self._policy = policy
        self._config = config
        self._store = store
        self._route = route
        self._old_versions = old_versions
        self._judges = judges
        self._sink = sink
        self._say = say
        self._interrupted = interrupted
        self._promoted = promoted
        self._look_every_s = look_every_s

    async def decided_against(self, version: int) -> str | None:
        """Return why an earlier canary of the version held it back; None if none did.

        Raises:
            StoreError: what was decided cannot be read.
        """
        record = await self._earlier(version)
        if record is None or record.state not in (Decision.REFUSED, Decision.STOPPED):
            return None
        return record.reason

    async def _earlier(self, version: int) -> CanaryRecord | None:
        found = await self._store.scan(
            lambda connection: canaries.select(connection, self._policy.name, version, version)
        )
        return found.get(version)

    async def refusal(self, candidate: Publication, live: int) -> str | None:
        """Return why a candidate must not go live; None if it may, or if an earlier canary promoted it over the same
        live version, before the engine refused it or the daemon ended.

        Args:
            live: the version that is served now.

        Raises:
            StoreError: what was seen cannot be read or written, or another daemon trains the policy by now.
        """
        version, earlier = candidate.version, await self._earlier(candidate.version)
        if earlier is not None and (earlier.state, earlier.live) == (Decision.PROMOTED, live):
            _log.info("%s was promoted by its canary: %s", candidate.name, earlier.evidence)
            return None
        record = CanaryRecord(self._policy.name, version, live, Decision.GOING_ON.value, time.time_ns(), None, {}, None)
        try:
            async with serve_candidate(self._old_versions, candidate, _START_S):
                record = replace(record, began_ns=time.time_ns())
                await self._put(record)
                self._route.begin(version)
                try:
                    record = await self._decided(record)
                finally:
                    self._route.end()
        except StoreError:
            raise  # nothing is decided: the loop waits for the store, and the comparison starts over
        except LightningError as error:
            reason = f"its canary could not be served: {error}"
            record = replace(record, state=Decision.INTERRUPTED.value, reason=reason)
        record = replace(record, ended_ns=time.time_ns())
        await self._put(record)
        if record.state == Decision.PROMOTED:
            _log.info("%s is promoted by its canary: %s", candidate.name, record.evidence)
            return None
        _log.warning("%s is not promoted: %s", candidate.name, record.reason)
        return record.reason

    async def _decided(self, record: CanaryRecord) -> CanaryRecord:
        before = await self._usual(record)
        # Both versions are compared by the reward of the stage that the candidate was trained in.
        seen = _Seen(self._policy.at_step(record.version))
        named = [self._judges[name] for name in judges_of(seen.policy.reward_weights, self._judges)]
        judges = CanaryJudges(named, self._store, self._say)
        share = f"{self._config.share:.0%}"
        beside = "answers alongside the live version in" if self._config.shadow else "answers"
        self._say(f"version {record.version} {beside} {share} of live rollouts; training waits until that decides")
        try:
            return await self._compared(record, seen, judges, before)
        finally:
            if seen.judging is not None:
                seen.judging.cancel()
                await asyncio.gather(seen.judging, return_exceptions=True)

    async def _compared(self, record: CanaryRecord, seen: _Seen, judges: CanaryJudges, before: Usual) -> CanaryRecord:
        give_up = time.monotonic() + self._config.timeout_s
        while True:
            changed = await self._read(record, seen)
            changed = await self._judged(seen, judges) or changed
            finding = await asyncio.to_thread(self._finding, record, seen, before)
            evidence = {**finding.evidence(), "unanswered": self._route.failed}
            if self._config.shadow:
                incomplete = len(seen.shadows.incomplete)
                evidence["shadow"] = {
                    "incomplete": incomplete,
                    "dropped": self._route.dropped,
                    "failed": self._route.failed,
                }
            record = replace(record, state=finding.decision.value, evidence=evidence, reason=finding.reason)
            if finding.decision is not Decision.REFUSED and (reason := self._unanswered(record.version)) is not None:
                return replace(record, state=Decision.STOPPED.value, reason=reason)
            if finding.decision is not Decision.GOING_ON:
                return record
            if self._promoted(record.version):
                return replace(record, state=Decision.PROMOTED.value, reason="a person promoted it")
            if await self._interrupted():
                return replace(record, state=Decision.INTERRUPTED.value, reason="its canary ended for a rollback")
            rewarded = f"with a reward of {finding.comparison.candidate.count} of its rollouts"
            if judges.spent is not None and seen.judging is None:
                reason = f"its canary is undecided, {rewarded}: {judges.spent}"
                return replace(record, state=Decision.STOPPED.value, reason=reason)
            if time.monotonic() >= give_up:
                reason = f"its canary is undecided after timeout_s = {self._config.timeout_s:g}, {rewarded}"
                return replace(record, state=Decision.STOPPED.value, reason=reason)
            if changed:
                await self._put(record)
            if seen.judging is None:
                await asyncio.sleep(self._look_every_s)
            else:
                await asyncio.wait({seen.judging}, timeout=self._look_every_s)

    def _unanswered(self, version: int) -> str | None:
        """Return why the candidate is no longer served; None if it is."""
        asked, failed = self._route.asked - self._route.dropped, self._route.failed
        if (why := self._old_versions.failure(version)) is not None:
            return f"its canary could not be served: {why}"
        if failed >= _MOST_UNANSWERED and failed > self._config.guard_margin * asked:
            return f"its canary could not be served: it did not answer {failed} of {asked} calls"
        return None

    def _finding(self, record: CanaryRecord, seen: _Seen, before: Usual) -> Finding:
        if not self._config.shadow:
            return judge_candidate(seen.rollouts.values(), record.version, record.live, self._config, before)
        pairs = (
            (new, old)
            for shadow, live in seen.shadows.whole.items()
            if (new := seen.rollouts.get(shadow)) is not None and new.version == record.version
            if (old := seen.rollouts.get(live)) is not None and old.version == record.live
        )
        return judge_shadow(pairs, self._config, before)

    async def _read(self, record: CanaryRecord, seen: _Seen) -> bool:
        """Read the rollouts that have ended, and again those of which more has come; return whether spans were new."""
        last = await self._store.last_span()
        if last == seen.last_span:
            return False
        before, seen.last_span = seen.last_span, last
        if self._config.shadow:
            await settle(
                seen.shadows,
                self._store,
                self._sink,
                policy=self._policy.name,
                version=record.version,
                since_ns=record.began_ns,
            )
            wanted = [*seen.shadows.whole, *seen.shadows.whole.values()]
            await self._read_again([name for name in wanted if _lacks_reward(seen, name)], seen)
            return True
        told = await self._store.scan(partial(attempts_since, after=before)) if seen.rollouts else ()
        wanted = [name for name in told if name in seen.rollouts and _lacks_reward(seen, name)]
        known = {*seen.rollouts, *seen.others}
        while True:
            new = await self._store.scan(
                lambda connection: canaries.select_rollouts(connection, record.policy, record.began_ns, sorted(known))
            )
            if not new:
                break
            wanted += new
            known.update(new)
        await self._read_again(wanted, seen)
        return True

    async def _read_again(self, wanted: list[str], seen: _Seen) -> None:
        for start in range(0, len(wanted), _AT_ONCE):
            some = wanted[start : start + _AT_ONCE]
            read = await self._rollouts(some, seen.policy)
            seen.rollouts |= read
            seen.others |= set(some) - read.keys()

    async def _judged(self, seen: _Seen, judges: CanaryJudges) -> bool:
        """Read again the rollouts that judges have just been asked about, then begin to ask about others that lack a
        reward; return whether some were read."""
        if seen.judging is not None:
            if not seen.judging.done():
                return False
            seen.judging.result()
            seen.judging = None
        answered, seen.in_question = sorted(seen.in_question), frozenset()
        await self._read_again(answered, seen)
        due = _to_be_judged(seen, time.monotonic())
        if judges and due and judges.spent is None:
            seen.in_question = frozenset(due[:_AT_ONCE])
            for name in seen.in_question:
                seen.judged[name] = (seen.judged.get(name, (0, 0.0))[0] + 1, time.monotonic())
            seen.judging = asyncio.create_task(self._ask(sorted(seen.in_question), judges), name="canary's judges")
        return bool(answered)

    async def _ask(self, attempt_ids: list[str], judges: CanaryJudges) -> None:
        await judges.ask(await self._store.scan(partial(attempt_table.select, attempt_ids=attempt_ids)))

    async def _usual(self, record: CanaryRecord) -> Usual:
        """Return the limits of length and time that rollouts usually kept before the candidate came."""
        before = await self._store.scan(
            lambda connection: canaries.select_before(connection, record.policy, record.began_ns, _BEFORE)
        )
        found: list[LiveRollout] = []
        for start in range(0, len(before), _AT_ONCE):
            found += (await self._rollouts(before[start : start + _AT_ONCE], self._policy)).values()
        return usual([one for one in found if one.version == record.live])

    async def _rollouts(self, attempt_ids: list[str], policy: PolicyConfig) -> dict[str, LiveRollout]:
        attempts, spans = await self._recorded(attempt_ids)
        return await asyncio.to_thread(read_rollouts, attempts, spans, policy)

    async def _recorded(self, attempt_ids: list[str]) -> tuple[list[Attempt], list[Span]]:
        return await self._store.scan(
            lambda connection: (
                attempt_table.select(connection, attempt_ids=attempt_ids),
                select_of_attempts(connection, attempt_ids),
            )
        )

    async def _put(self, record: CanaryRecord) -> None:
        await self._store.write_in_turn(self._policy.name, lambda connection: canaries.put(connection, record))


def _lacks_reward(seen: _Seen, name: str) -> bool:
    known = seen.rollouts.get(name)
    return name not in seen.others and name not in seen.in_question and (known is None or known.reward is None)


def _to_be_judged(seen: _Seen, now: float) -> list[str]:
    """Return the rollouts to ask judges about, those first that they were never asked about."""
    lacking = [name for name, one in seen.rollouts.items() if one.reward is None]
    asked = {name: seen.judged[name] for name in lacking if name in seen.judged}
    again = [name for name, (times, at) in asked.items() if times < _MOST_ASKED and now - at >= _ASK_AGAIN_S]
    return [*(name for name in lacking if name not in asked), *again]
