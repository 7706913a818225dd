"""A candidate goes live by what live rollouts earned with it, and stops at once where it does harm."""

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_token_ids
from pydantic import TypeAdapter
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.config import Config
from lightning_trainer.config.judges import JudgeConfig
from lightning_trainer.config.policies.versions import CanaryConfig
from lightning_trainer.daemon.publication import canary
from lightning_trainer.daemon.publication.canary import Canary
from lightning_trainer.daemon.publication.old_versions import Lease
from lightning_trainer.daemon.publication.publishing import Publisher
from lightning_trainer.daemon.publication.version_keeper import VersionKeeper
from lightning_trainer.errors import EngineError, StoreError, TurnLostError
from lightning_trainer.gateway.canary_route import CanaryRoute
from lightning_trainer.gateway.shadow import shadow_id, shadow_trace
from lightning_trainer.judges.judging import Judging
from lightning_trainer.judges.registry import make_judge
from lightning_trainer.judges.scoring_engine import engines_of
from lightning_trainer.serving.publication import Probe, Publication, PublicationReport, Tolerance
from lightning_trainer.serving.shared_memory import WeightFolder
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import canaries
from lightning_trainer.store.tables.canaries import CanaryRecord
from lightning_trainer.types import Attempt, PolicyVersion, RolloutMode, SpanStatus, VersionState
from lightning_trainer.versions.archive import VersionArchive

SAID = {
    semconv.INPUT_MESSAGES: '[{"role": "user", "parts": [{"type": "text", "content": "How much?"}]}]',
    semconv.OUTPUT_MESSAGES: '[{"role": "assistant", "parts": [{"type": "text", "content": "Six."}]}]',
}


class OldVersions:
    """Serves what the archive has."""

    def __init__(self, folder) -> None:
        self.archive = VersionArchive(folder / "versions", model_dir=folder)
        self.told: list[str] = []
        self.error: str | None = None
        self.given_up: str | None = None

    def failure(self, version: int) -> str | None:
        return self.given_up

    async def lease(self, version: int) -> Lease:
        self.told.append("lease")
        upstream: Any = SimpleNamespace(ready=self._ready)
        return Lease(upstream, lambda: self.told.append("release"))

    async def let_go(self, version: int) -> None:
        self.told.append("let go")

    async def _ready(self, timeout_s: float) -> None:
        if self.error is not None:
            raise EngineError(self.error)


class Trainer:
    async def publish(self, path, version: int) -> Publication:
        path.write_text(f"weights {version}")
        probe = Probe(((1, 2),), ((-0.5,),))
        return Publication("math", version, str(path), "ab" * 16, 2, "float32", probe, Tolerance(1e-3, 1e-3))


class Engine:
    def __init__(self) -> None:
        self.live: dict[str, Publication] = {}

    async def publish(self, publication: Publication) -> PublicationReport:
        self.live["math"] = publication
        return PublicationReport(True, publication.version)


class Traffic:
    """A publisher with a canary, and rollouts that either version answers."""

    def __init__(
        self, folder, store, make_policy, attempt_spans, reward_span, judges=None, stage=(), **settings: Any
    ) -> None:
        self.store, self.attempt_spans, self.reward_span = store, attempt_spans, reward_span
        config = CanaryConfig(**{"share": 0.25, "tolerance": 0.1, **settings})
        self.policy = make_policy(canary=config, reward="known" if judges else "reward", stage=stage)
        self.route = CanaryRoute("math", share=config.share, by=config.by, shadow=config.shadow)
        self.old, self.said, self.rollback, self.number = OldVersions(folder), [], False, 0
        self.promoted: int | None = None
        old: Any = self.old
        self.canary = Canary(
            self.policy,
            config,
            store=store,
            route=self.route,
            old_versions=old,
            judges=judges or {},
            sink=store,
            say=self.said.append,
            interrupted=self._is_rolled_back,
            promoted=lambda version: version == self.promoted,
            look_every_s=0.02,
        )
        weights = folder / "weights"
        weights.mkdir()
        self.engine = Engine()
        engine: Any = self.engine
        trainer: Any = Trainer()
        self.publisher = Publisher(
            "math",
            store=store,
            trainer=trainer,
            engine=engine,
            weights=WeightFolder(weights),
            keeper=VersionKeeper(self.policy, store=store, archive=self.old.archive),
            canary=self.canary,
        )

    async def _is_rolled_back(self) -> bool:
        return self.rollback

    async def rollout(self, reward: float | None, *, tool_error: bool = False, tokens: int | None = None) -> None:
        """One live rollout, answered by whoever the gateway would ask."""
        self.number += 1
        name = f"a{self.number}"
        version = self.route.version_for({semconv.ROLLOUT_ID: f"r-{name}"}) or 0
        root, call = self.attempt_spans(name, [1, 2], time.time_ns(), task=name)
        call.attributes[semconv.POLICY_VERSION] = version
        if tokens is not None and version:
            call.attributes[semconv.response_token_ids(0)] = pack_token_ids([7] * tokens)
        spans = [root, call]
        if tool_error and version:
            tool = {**root.attributes, semconv.OPERATION: semconv.EXECUTE_TOOL}
            del tool[semconv.ROLLOUT_ROOT]
            spans.append(
                replace(call, span_id=f"{self.number:016x}", attributes=tool, status=SpanStatus.ERROR, scope="")
            )
        if reward is not None:
            spans.append(self.reward_span(reward if version else 0.5 + (self.number % 2) / 2, attempt=name))
        await self.store.append(spans)

    async def pair(self, *, answered: bool = True) -> None:
        """One live rollout, and what the candidate answers beside the live version where it is asked."""
        self.number += 1
        name = f"a{self.number}"
        version = self.route.shadow_for({semconv.ROLLOUT_ID: f"r-{name}"})
        root, call = self.attempt_spans(name, [1, 2], time.time_ns(), task=name)
        call.attributes[semconv.POLICY_VERSION] = 0
        call.attributes.update(SAID)
        root.attributes[semconv.ROLLOUT_INPUT] = '"How much?"'
        await self.store.append([root, call])
        if version is not None and answered:
            _, beside = self.attempt_spans(shadow_id(name, version), [1, 2], time.time_ns(), task=name)
            attributes = {**beside.attributes, **SAID, semconv.POLICY_VERSION: version, semconv.ROLLOUT_MODE: "shadow"}
            attributes[semconv.GROUP_ID] = shadow_id(name, version)
            trace_id, parent = shadow_trace(shadow_id(name, version))
            await self.store.append([replace(beside, trace_id=trace_id, parent_span_id=parent, attributes=attributes)])

    async def until(self, publishing: asyncio.Task, reward: float | None, **more: Any) -> PolicyVersion:
        """Let rollouts come, of which the candidate's earn so much, until the version's fate is decided."""
        async with asyncio.timeout(60):
            while self.route.version is None and not publishing.done():
                await asyncio.sleep(0.01)
            while not publishing.done():
                await self.rollout(reward, **more)
                await asyncio.sleep(0.001)
        return publishing.result()


@pytest.fixture
async def traffic(tmp_path, make_policy, attempt_spans, reward_span):
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:

        async def begin(judges=None, **settings: Any) -> Traffic:
            run = Traffic(tmp_path, store, make_policy, attempt_spans, reward_span, judges, **settings)
            assert (await run.publisher.publish(version=0, step=0)).state is VersionState.LIVE, (
                "nothing to compare with"
            )
            return run

        yield begin


def publish(run: Traffic, version: int = 1) -> asyncio.Task:
    return asyncio.create_task(run.publisher.publish(version=version, step=version))


async def test_one_that_earns_more_goes_live(traffic) -> None:
    run = await traffic()
    version = await run.until(publish(run), 1.0)
    assert (version.state, run.engine.live["math"].version) == (VersionState.LIVE, 1)
    assert run.old.told == ["lease", "release", "let go"]
    assert run.route.version is None
    assert run.said[0] == "version 1 answers 25% of live rollouts; training waits until that decides"


async def test_one_that_earns_less_is_refused_and_the_command_says_by_how_much(traffic, tmp_path, monkeypatch) -> None:
    run = await traffic()
    version = await run.until(publish(run), 0.0)
    assert (version.state, run.engine.live["math"].version) == (VersionState.REFUSED, 0)
    assert version.reason is not None
    assert version.reason.startswith("its canary is worse: mean 0.000 of ")
    await run.store.close()
    monkeypatch.chdir(tmp_path)
    settings = '[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\n'
    (tmp_path / "lightning.toml").write_text(settings)
    told = await asyncio.to_thread(CliRunner().invoke, app, ["versions"], env={"COLUMNS": "200"})
    assert "refused 0.000 (" in told.output, told.output
    assert f"\nv1: {version.reason}\n" in told.output


@pytest.mark.long
async def test_one_is_compared_by_the_reward_of_the_stage_that_it_was_trained_in(traffic) -> None:
    run = await traffic(stage=[{"steps": 1, "reward": "reward"}, {"reward": "whole"}], timeout_s=2)
    first = await run.until(publish(run), 0.0)
    assert (first.reason or "").startswith("its canary is worse: mean 0.000 of ")
    second = await run.until(publish(run, 2), 0.0)  # "whole" is the reward now, and nobody gives it
    assert second.reason == "its canary is undecided after timeout_s = 2, with a reward of 0 of its rollouts"


@pytest.mark.long
async def test_a_reward_counts_however_many_rollouts_came_after_its_own(traffic) -> None:
    run = await traffic()
    publishing = publish(run)
    while run.route.version is None:
        await asyncio.sleep(0.01)
    while run.route.version_for({semconv.ROLLOUT_ID: f"r-a{run.number + 1}"}) is None:
        run.number += 1
    await run.rollout(None)
    later = []
    for number in range(2001):
        root, call = run.attempt_spans(f"later{number}", [1, 2], time.time_ns(), task="later")
        call.attributes[semconv.POLICY_VERSION] = 0
        later += [root, call]
    await run.store.append(later)

    async def is_seen(**evidence: list[int]) -> None:
        async with asyncio.timeout(60):
            while True:
                records = await run.store.scan(lambda connection: canaries.select(connection, "math", 1, 1))
                if evidence.items() <= records[1].evidence.items():
                    return
                await asyncio.sleep(0.05)

    await is_seen(rollouts=[1, 2001], rewards=[0, 0])
    await run.store.append([run.reward_span(1.0, attempt=f"a{run.number}")])
    await is_seen(rewards=[1, 0])
    await run.store.append([run.reward_span(1.0, rollout="r-later0"), run.reward_span(1.0, response="response-later1")])
    await is_seen(rewards=[1, 2])
    run.rollback = True
    await publishing


async def test_one_that_breaks_tools_is_stopped_without_a_reward(traffic) -> None:
    run = await traffic()
    version = await run.until(publish(run), None, tool_error=True)
    assert version.state is VersionState.REFUSED
    assert version.reason == "its canary has tool errors in 100% of its rollouts, the live version in 0%"


async def test_what_was_long_before_is_known_beside_a_busier_policy(traffic) -> None:
    run = await traffic()
    for _ in range(20):
        await run.rollout(None)
    others = []
    for number in range(501):
        root, call = run.attempt_spans(f"o{number}", [1, 2], time.time_ns(), task="other")
        call.attributes[semconv.POLICY] = "other"
        others += [root, call]
    await run.store.append(others)
    version = await run.until(publish(run), None, tokens=40)
    assert version.reason == "its canary has long answers in 100% of its rollouts, the live version in 0%"


async def test_one_of_which_nobody_can_say_is_stopped_after_the_most_rollouts(traffic) -> None:
    run = await traffic(max_rollouts=10, tolerance=0.0)
    version = await run.until(publish(run), 0.75)
    assert version.state is VersionState.REFUSED
    assert version.reason is not None
    assert version.reason.startswith("its canary is undecided after max_rollouts = 10: mean 0.750 of 1")


async def test_it_ends_undecided_after_its_time_for_a_rollback_and_where_it_cannot_be_served(traffic) -> None:
    run = await traffic(timeout_s=0.2)
    version = await run.publisher.publish(version=1, step=1)
    assert version.reason == "its canary is undecided after timeout_s = 0.2, with a reward of 0 of its rollouts"
    run.rollback = True
    assert (await run.publisher.publish(version=2, step=2)).reason == "its canary ended for a rollback"
    run.old.error = "no memory"
    assert (await run.publisher.publish(version=3, step=3)).reason == "its canary could not be served: no memory"
    assert run.route.version is None
    assert (await run.publisher.publish(version=4, step=4, asked_for=True)).state is VersionState.LIVE


async def test_one_that_does_not_answer_is_stopped(traffic) -> None:
    run = await traffic()
    publishing = publish(run)
    while run.route.version is None:
        await asyncio.sleep(0.01)
    run.route.asked, run.route.failed = 100, 10
    await asyncio.sleep(0.1)
    assert not publishing.done(), "no more than guard_margin"
    run.route.failed = 11
    version = await publishing
    assert version.reason == "its canary could not be served: it did not answer 11 of 100 calls"
    again = publish(run, 2)
    while run.route.version is None:
        await asyncio.sleep(0.01)
    run.old.given_up = "the engine ended 6 times"
    version = await again
    assert version.reason == "its canary could not be served: the engine ended 6 times"
    records = await run.store.scan(lambda connection: canaries.select(connection, "math", 1, 2))
    assert [(one.state, one.evidence["unanswered"]) for one in records.values()] == [("stopped", 11), ("stopped", 0)]


async def test_a_person_promotes_it_before_it_is_decided(traffic) -> None:
    run = await traffic()
    publishing = publish(run)
    while run.route.version is None:
        await asyncio.sleep(0.01)
    await run.rollout(0.0)
    run.promoted = 1
    version = await publishing
    assert (version.state, run.engine.live["math"].version) == (VersionState.LIVE, 1)
    found = await run.store.scan(lambda connection: canaries.select(connection, "math", 1, 1))
    assert (found[1].state, found[1].reason) == ("promoted", "a person promoted it")


async def test_one_that_was_refused_says_why_when_a_person_promotes_it_later(traffic) -> None:
    run = await traffic(timeout_s=0.1)
    refused = await run.publisher.publish(version=1, step=1)
    version = await run.publisher.publish(version=1, step=1, asked_for=True)
    assert version.state is VersionState.LIVE
    assert version.reason == f"a person promoted it; it was refused before: {refused.reason}"


async def test_what_was_promoted_has_no_second_canary_where_the_engine_or_the_daemon_ended_before_it_was_served(
    traffic, monkeypatch
) -> None:
    run = await traffic()
    accepts, times = run.engine.publish, []

    async def damaged_once(publication: Publication) -> PublicationReport:
        times.append(publication)
        return PublicationReport(False, 0, "the file is damaged") if len(times) == 1 else await accepts(publication)

    monkeypatch.setattr(run.engine, "publish", damaged_once)
    assert (await run.until(publish(run), 1.0)).state is VersionState.LIVE
    assert (len(times), run.old.told.count("lease")) == (2, 1)

    async def away(publication: Publication) -> PublicationReport:
        raise EngineError("the engine failed 6 times")

    monkeypatch.setattr(run.engine, "publish", away)
    publishing = publish(run, 2)
    async with asyncio.timeout(60):
        while run.route.version is None:
            await asyncio.sleep(0.01)
        run.promoted = 2
        with pytest.raises(EngineError):
            await publishing
    run.promoted = None
    monkeypatch.setattr(run.engine, "publish", accepts)
    async with asyncio.timeout(10):
        assert (await run.publisher.publish(version=2, step=2)).state is VersionState.LIVE
    assert run.old.told.count("lease") == 2


async def test_what_was_promoted_over_another_version_has_a_canary(traffic) -> None:
    run = await traffic(timeout_s=0.1)
    promoted = CanaryRecord("math", 1, 7, "promoted", 1, 2, {}, None)
    await run.store.write(lambda connection: canaries.put(connection, promoted))
    assert (await run.publisher.publish(version=1, step=1)).state is VersionState.REFUSED


async def test_who_promoted_it_is_said_after_a_restart_too(traffic) -> None:
    run = await traffic(timeout_s=0.1)
    await run.publisher.publish(version=1, step=1)
    promoted = await run.publisher.publish(version=1, step=1, asked_for=True)
    run.engine.live.clear()
    assert (await run.publisher.publish(version=1, step=1)).reason == promoted.reason
    run.engine.live.clear()
    await run.publisher.publish(version=2, step=2)  # serves what is live from its kept weights first
    assert (await run.store.version("math", 1)).reason == promoted.reason


async def test_a_daemon_that_ends_meanwhile_leaves_nothing_and_says_that_it_was_going_on(traffic) -> None:
    run = await traffic()
    publishing = publish(run)
    while run.route.version is None:
        await asyncio.sleep(0.01)
    publishing.cancel()
    with suppress(asyncio.CancelledError):
        await publishing
    assert (run.route.version, run.old.told) == (None, ["lease", "release", "let go"])


@pytest.mark.parametrize(("what", "error"), [("last_span", StoreError), ("write_in_turn", TurnLostError)])
async def test_a_store_that_fails_and_a_turn_that_is_lost_decide_nothing(traffic, monkeypatch, what, error) -> None:
    run = await traffic()
    publishing = publish(run)
    while run.route.version is None:
        await asyncio.sleep(0.01)

    async def fails(*_) -> None:
        raise error("not now")

    with monkeypatch.context() as broken:
        broken.setattr(run.store, what, fails)
        await run.rollout(1.0)
        with pytest.raises(error, match="not now"):
            await publishing
    assert (run.route.version, run.old.told) == (None, ["lease", "release", "let go"])
    assert (await run.store.version("math", 1)).state is VersionState.TRAINED
    assert (await run.until(publish(run), 1.0)).state is VersionState.LIVE


async def test_a_canary_that_ended_with_the_daemon_is_not_said_to_go_on_after_a_rollback(traffic) -> None:
    run = await traffic()
    assert (await run.publisher.publish(version=1, step=1, asked_for=True)).state is VersionState.LIVE
    publishing = publish(run, 2)
    while run.route.version is None:
        await asyncio.sleep(0.01)
    publishing.cancel()
    with suppress(asyncio.CancelledError):
        await publishing
    await run.publisher.publish(version=0, step=0, asked_for=True)
    version = await run.store.version("math", 2)
    assert (version.state, version.reason) == (VersionState.REFUSED, "its canary ended with the daemon")
    record = (await run.store.scan(lambda connection: canaries.select(connection, "math", 2, 2)))[2]
    assert (record.state, record.reason, record.ended_ns is None) == ("interrupted", version.reason, False)


async def test_what_a_canary_has_decided_against_is_not_offered_again_by_a_restart(traffic) -> None:
    run = await traffic(max_rollouts=10, tolerance=0.0)
    refused = await run.until(publish(run), 0.75)
    for harmful in (1, 2):
        if harmful == 2:
            refused = await run.until(publish(run, 2), None, tool_error=True)
        told = list(run.old.told)
        again = await run.until(publish(run, harmful), 1.0)
        assert (again.state, again.reason) == (VersionState.REFUSED, refused.reason)
        assert run.old.told == told, "it was served again"
        record = (await run.store.scan(lambda connection: canaries.select(connection, "math", 1, 2)))[harmful]
        assert (record.reason, record.ended_ns is None) == (refused.reason, False)
    assert run.engine.live["math"].version == 0
    assert (await run.publisher.publish(version=2, step=2, asked_for=True)).state is VersionState.LIVE


async def test_a_verdict_of_a_daemon_that_ended_before_it_was_recorded_counts(traffic) -> None:
    run = await traffic()
    refused = CanaryRecord("math", 1, 0, "refused", 1, 2, {}, "its canary is worse")
    await run.store.put_version(PolicyVersion("math", 1, 1, VersionState.TRAINED, 1))
    await run.store.write(lambda connection: canaries.put(connection, refused))
    version = await run.until(publish(run), 1.0)
    assert (version.state, version.reason) == (VersionState.REFUSED, "its canary is worse")
    assert await run.store.version("math", 1) == version


async def test_what_was_decided_against_is_not_given_to_users_either_where_the_live_version_is_lost(traffic) -> None:
    run = await traffic(timeout_s=0.1)
    assert (await run.publisher.publish(version=1, step=1, asked_for=True)).state is VersionState.LIVE
    refused = await run.publisher.publish(version=2, step=2)
    run.engine.live.clear()
    run.old.archive.remove(1)
    again = await run.publisher.publish(version=2, step=2)
    assert again.state is VersionState.REFUSED
    assert again.reason == (
        f"{refused.reason}; and the weights of math@v1, which was live, are not kept: `lightning-trainer "
        "promote math@v2` serves it all the same, `lightning-trainer rollback` another one"
    )
    assert (run.engine.live, (await run.store.version("math", 2)).reason) == ({}, refused.reason)
    assert (await run.publisher.publish(version=2, step=2, asked_for=True)).state is VersionState.LIVE
    run.engine.live.clear()
    assert (await run.publisher.publish(version=2, step=2)).state is VersionState.LIVE, "a person has promoted it"


async def test_what_kept_a_canary_from_deciding_passes(traffic) -> None:
    run = await traffic()
    run.old.error = "no memory"
    assert (await run.publisher.publish(version=1, step=1)).reason == "its canary could not be served: no memory"
    run.old.error, run.rollback = None, True
    assert (await run.publisher.publish(version=1, step=1)).reason == "its canary ended for a rollback"
    run.rollback = False
    record = (await run.store.scan(lambda connection: canaries.select(connection, "math", 1, 1)))[1]
    assert record.state == "interrupted"
    assert (await run.until(publish(run), 1.0)).state is VersionState.LIVE


async def shadowed_traffic(run: Traffic, publishing: asyncio.Task, **more: Any) -> PolicyVersion:
    async with asyncio.timeout(120):
        while run.route.version is None and not publishing.done():
            await asyncio.sleep(0.01)
        while not publishing.done():
            for _ in range(20):
                await run.pair(**more)
            await asyncio.sleep(0.05)
    return publishing.result()


@pytest.fixture
async def in_shadow(tmp_path, make_policy, attempt_spans, reward_span):
    """``in_shadow(of_candidate, of_live)``: a canary beside the live version, scored by a program."""
    folder = tmp_path / "shadow"
    folder.mkdir()
    made = []
    async with SqliteStore(folder / "lightning.sqlite") as store:

        async def begin(of_candidate: Any, of_live: Any, *, judge: dict | None = None, **settings: Any) -> Traffic:
            code = (
                "import json, sys; told = json.load(sys.stdin); assert told['input'] == 'How much?'; "
                f"print({of_candidate} if '.shadow-v' in told['attempt_id'] else {of_live})"
            )
            # Without site-packages, which it does not need, it starts in a fifth of the time, and it starts often.
            command = [sys.executable, "-S", "-c", code]
            told = {"name": "known", "kind": "program", "command": command, "working_dir": folder}
            config = TypeAdapter(JudgeConfig).validate_python(judge or told)
            judging = Judging(make_judge(config, engines_of(Config(), {}.__getitem__)), store, store.spans_of_trace)
            made.append(judging)
            told = {"share": 0.5, "tolerance": 0.5, "shadow": True, **settings}
            run = Traffic(folder, store, make_policy, attempt_spans, reward_span, {"known": judging}, **told)
            await run.publisher.publish(version=0, step=0)
            return run

        yield begin
        for judging in made:
            await judging.close()


@pytest.mark.process
async def test_beside_the_live_version_a_candidate_goes_live_by_what_a_judge_says(in_shadow) -> None:
    run = await in_shadow(1.0, 0.5)
    version = await shadowed_traffic(run, publish(run))
    assert (version.state, run.engine.live["math"].version) == (VersionState.LIVE, 1)
    assert run.said[0].startswith("version 1 answers alongside the live version in 50% of live rollouts")
    record = (await run.store.scan(lambda connection: canaries.select(connection, "math", 1, 1)))[1]
    assert record.evidence["means"] == [1.0, 0.5]
    assert record.evidence["rewards"][0] == record.evidence["rewards"][1]
    assert record.evidence["shadow"] == {"incomplete": 0, "dropped": 0, "failed": 0}
    attempts = await run.store.attempts()
    shadows = {one.group_id for one in attempts if one.mode is RolloutMode.SHADOW}
    assert len(shadows) >= record.evidence["rewards"][0]
    assert not shadows & {one.group_id for one in attempts if one.mode is RolloutMode.TRAIN}


@pytest.mark.process
async def test_beside_the_live_version_a_worse_one_is_refused(in_shadow) -> None:
    run = await in_shadow(0.0, 1.0)
    version = await shadowed_traffic(run, publish(run))
    assert version.state is VersionState.REFUSED
    assert version.reason is not None
    assert version.reason.startswith("its canary is worse: mean 0.000 of ")


async def test_nothing_is_said_of_a_candidate_that_answers_nothing(in_shadow) -> None:
    run = await in_shadow(1.0, 0.5, timeout_s=0.5)
    version = await shadowed_traffic(run, publish(run), answered=False)
    assert version.reason == "its canary is undecided after timeout_s = 0.5, with a reward of 0 of its rollouts"


@pytest.mark.process
async def test_why_a_judge_gives_no_reward_is_said_once(in_shadow) -> None:
    run = await in_shadow("'null'", "'null'", timeout_s=3.0)
    version = await shadowed_traffic(run, publish(run))
    assert version.reason == "its canary is undecided after timeout_s = 3, with a reward of 0 of its rollouts"
    (said,) = run.said[1:]
    assert re.match(r"judge known gave no reward to \d+ of \d+ attempts \(such as a\d+.*\): ", said), said


async def test_a_judge_that_ends_in_an_error_is_said_and_costs_no_more_than_its_reward(in_shadow, monkeypatch) -> None:
    run = await in_shadow(1.0, 0.5, timeout_s=1.0)

    async def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(Judging, "judge_group", broken)
    version = await shadowed_traffic(run, publish(run))
    assert version.reason == "its canary is undecided after timeout_s = 1, with a reward of 0 of its rollouts"
    assert run.said[1:] == ["judge known ended in an error, and attempts lack its reward: KeyError: 'a bug'"]


@pytest.mark.long
@pytest.mark.parametrize(("after_s", "times"), [(0.0, 3), (60.0, 1)])
async def test_what_a_judge_failed_at_is_asked_again_later_and_not_for_ever(
    in_shadow, monkeypatch, after_s, times
) -> None:
    """Before, judges were asked about a rollout once: after a minute without them a canary could not be decided."""
    run = await in_shadow(1.0, 0.5, timeout_s=1.5)
    asked: Counter[str] = Counter()

    async def broken(judging: Judging, spans: Any, attempts: Sequence[Attempt], *_, **__):
        asked.update(one.attempt_id for one in attempts)
        raise KeyError("a bug")

    monkeypatch.setattr(Judging, "judge_group", broken)
    monkeypatch.setattr(canary, "_ASK_AGAIN_S", after_s)
    publishing = publish(run)
    while run.route.version is None:
        await asyncio.sleep(0.05)
    for _ in range(20):
        await run.pair()
    version = await publishing
    assert version.reason == "its canary is undecided after timeout_s = 1.5, with a reward of 0 of its rollouts"
    assert set(asked.values()) == {times}


@pytest.mark.parametrize("ended", ["harm", "rollback", "timeout"])
async def test_a_judge_that_hangs_keeps_nobody_from_ending_the_canary(in_shadow, monkeypatch, ended) -> None:
    run = await in_shadow(1.0, 0.5, **({"timeout_s": 1.0} if ended == "timeout" else {}))
    asked = asyncio.Event()
    stopped = asyncio.Event()

    async def hangs(*_, **__):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    monkeypatch.setattr(Judging, "judge_group", hangs)
    publishing = publish(run)

    async def end():
        await asked.wait()
        run.rollback = ended == "rollback"
        if ended == "harm":
            run.route.asked, run.route.failed = 1000, 1000

    ending = asyncio.create_task(end())
    version = await shadowed_traffic(run, publishing)
    await ending
    assert version.reason is not None
    assert version.reason.startswith(
        {
            "harm": "its canary could not be served: it did not answer 1000 of ",
            "rollback": "its canary ended for a rollback",
            "timeout": "its canary is undecided after timeout_s = 1",
        }[ended]
    )
    assert stopped.is_set(), "and nobody is asked on for it"


async def test_a_canary_whose_judge_may_spend_no_more_is_stopped(in_shadow) -> None:
    judge = {"name": "known", "kind": "rubric", "model": "m", "base_url": "http://127.0.0.1:9/v1"}
    judge |= {"criterion": [{"name": "right", "says": "It is right."}], "budget": {"tokens": 1}}
    run = await in_shadow(0, 0, judge=judge)
    version = await shadowed_traffic(run, publish(run))
    assert version.state is VersionState.REFUSED
    assert version.reason is not None
    assert re.match(
        r"its canary is undecided, with a reward of 0 of its rollouts: judge known, its budget is spent: the next call "
        r"could bring tokens to \d+, and judge.budget.tokens is 1; raise it",
        version.reason,
    ), version.reason


@pytest.mark.process
async def test_a_judge_is_asked_about_live_rollouts_while_training_waits(in_shadow) -> None:
    """Not in shadow: the candidate answers its share, and a judge that gives the reward scores both."""
    run = await in_shadow(0.5, 0.5, shadow=False, max_rollouts=10, tolerance=0.0)
    publishing = publish(run)
    async with asyncio.timeout(120):
        while run.route.version is None:
            await asyncio.sleep(0.01)
        while not publishing.done():
            run.number += 1
            name = f"a{run.number}"
            root, call = run.attempt_spans(name, [1, 2], time.time_ns(), task=name)
            call.attributes[semconv.POLICY_VERSION] = run.route.version_for({semconv.ROLLOUT_ID: f"r-{name}"}) or 0
            root.attributes[semconv.ROLLOUT_INPUT] = '"How much?"'
            await run.store.append([root, call])
            await asyncio.sleep(0.02)
    assert publishing.result().reason.startswith("its canary is undecided after max_rollouts = 10: mean 0.500 of ")
