"""Replicas switch versions together or not at all, and each comes back by itself."""

import asyncio
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_trainer.errors import EngineError, PublicationError
from lightning_trainer.serving.adapter import AdapterShape
from lightning_trainer.serving.replicas import EngineReplicas
from lightning_trainer.serving.settings import EngineSettings, replica_settings
from lightning_trainer.serving.supervisor import Backoff, EngineState


@pytest.fixture
def plans(new_plan):
    return [new_plan(), new_plan()]


@pytest.fixture
async def replicas(plans, make_supervisor):
    replicas = EngineReplicas([make_supervisor(plan) for plan in plans])
    yield replicas
    await replicas.stop()


def lives(plans) -> list[list[list[int]]]:
    """What each life of each replica published."""
    return [[engine.published for engine in plan.engines] for plan in plans]


async def test_a_version_goes_to_all_and_the_file_of_the_one_before_goes(replicas, plans, publication, tmp_path):
    await replicas.start()
    for version in (1, 2):
        report = await replicas.publish(publication(version))
        assert (report.accepted, report.version) == (True, version)
    assert lives(plans) == [[[1, 2]], [[1, 2]]]
    assert replicas.status.versions == {"math": 2}
    assert replicas.live["math"].version == 2
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["v2.safetensors"]


@pytest.mark.parametrize("refusing", [0, 1])
async def test_a_version_that_one_refuses_is_taken_back_by_the_other(
    replicas, plans, publication, tmp_path, refusing: int
):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[refusing].refused = {2}
    report = await replicas.publish(publication(2))
    assert (report.accepted, report.version) == (False, 1)
    assert report.reason == f"replica {refusing + 1} of 2: it differs"
    assert [published[-1] for (published,) in lives(plans)] == [1, 1]
    assert replicas.status.versions == {"math": 1}
    assert [one.versions for one in replicas.status.replicas] == [{"math": 1}] * 2
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["v1.safetensors"]
    assert (await replicas.publish(publication(3))).accepted


async def test_a_first_version_that_one_refuses_leaves_all_at_version_0(replicas, plans, publication, tmp_path):
    await replicas.start()
    plans[1].refused = {1}
    assert not (await replicas.publish(publication(1))).accepted
    assert lives(plans) == [[[1], []], [[]]], "only a new start serves version 0 again"
    assert [one.versions for one in replicas.status.replicas] == [{"math": 0}] * 2
    assert not list(tmp_path.glob("*.safetensors"))


async def test_what_was_served_last_is_served_by_all_from_the_start_on(replicas, plans, publication, tmp_path):
    replicas.resume(publication(7), pytest.fail)
    await replicas.start()
    assert lives(plans) == [[[7]], [[7]]]
    assert replicas.status.versions == {"math": 7}
    assert (await replicas.publish(publication(8))).accepted
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["v8.safetensors"]


async def test_what_one_refuses_of_what_was_served_last_is_served_by_none(replicas, plans, publication, tmp_path):
    told: list[str] = []
    plans[1].refused = {7}
    replicas.resume(publication(7), told.append)
    await replicas.start()
    assert told == ["it differs"]
    assert [one.versions for one in replicas.status.replicas] == [{"math": 0}] * 2
    assert replicas.status.versions == {"math": 0}
    assert not list(tmp_path.glob("*.safetensors"))


async def test_one_that_dies_of_a_version_makes_it_refused_on_all(replicas, plans, publication):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[1].deadly = {2}
    report = await replicas.publish(publication(2))
    assert (report.accepted, report.version) == (False, 1)
    assert "replica 2 of 2: " in (report.reason or "")
    assert lives(plans) == [[[1, 2, 1]], [[1], [1], [1]]]
    assert replicas.status.versions == {"math": 1}


async def test_one_that_dies_of_something_else_is_offered_it_again(replicas, plans, publication):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[0].deadly_once = {2}
    assert (await replicas.publish(publication(2))).accepted
    assert lives(plans) == [[[1], [1, 2]], [[1, 2]]]


async def test_one_that_was_killed_comes_back_with_the_live_version_while_the_other_answers(
    replicas, plans, publication
):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[0].engines[0].die("killed")
    while replicas.replicas[0].state is EngineState.READY:
        await asyncio.sleep(0)
    await replicas.ready(0)
    assert replicas.state is EngineState.READY
    assert replicas.begin() is replicas.replicas[1]
    await replicas.replicas[0].ready(1)
    assert lives(plans) == [[[1], [1]], [[1]]]
    assert replicas.status.restarts == 1
    assert replicas.begin() is replicas.replicas[0]


async def test_one_that_was_given_up_comes_back_with_what_the_others_serve_by_then(
    new_plan, make_supervisor, publication
):
    plans = [new_plan(), new_plan()]
    pauses = Backoff(first_s=0.001, longest_s=0.001, attempts=1, first_rest_s=0.2, longest_rest_s=0.2)
    replicas = EngineReplicas([make_supervisor(plan, backoff=pauses) for plan in plans])
    await replicas.start()
    await replicas.publish(publication(1))
    plans[1].start_errors = ["out of memory"] * 2
    plans[1].engines[0].die("killed")
    while replicas.replicas[1].state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    assert (await replicas.publish(publication(2))).accepted
    async with asyncio.timeout(10):
        while replicas.replicas[1].state is not EngineState.READY:
            await asyncio.sleep(0.001)
    assert plans[1].engines[-1].published == [2]
    assert [one.versions for one in replicas.status.replicas] == [{"math": 2}] * 2
    await replicas.stop()


async def test_one_that_comes_back_during_a_switch_answers_nothing_with_the_version_before(
    new_plan, make_supervisor, publication
):
    plans = [new_plan(), new_plan()]
    pauses = Backoff(first_s=0.001, longest_s=0.001, attempts=1, first_rest_s=0.05, longest_rest_s=0.05)
    replicas = EngineReplicas([make_supervisor(plan, backoff=pauses) for plan in plans])
    await replicas.start()
    await replicas.publish(publication(1))
    plans[1].engines[0].die("killed")
    plans[1].start_errors = ["out of memory"]
    while replicas.replicas[1].state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    plans[0].drained.clear()
    publishing = asyncio.create_task(replicas.publish(publication(2)))
    async with asyncio.timeout(10):
        while replicas.replicas[1].state is not EngineState.READY:
            await asyncio.sleep(0.001)
    plans[1].stop_s = 0.05
    plans[0].drained.set()
    while plans[0].engines[0].published != [1, 2]:
        await asyncio.sleep(0)
    await replicas.ready(5)
    answering = {replicas.begin() for _ in range(4)}
    assert [plans[replicas.replicas.index(one)].engines[-1].published[-1] for one in answering] == [2] * len(answering)
    assert (await publishing).accepted
    await replicas.stop()


async def test_one_that_is_given_up_is_left_out(replicas, plans, publication):
    await replicas.start()
    plans[1].start_errors = ["out of memory"] * 10
    plans[1].engines[0].die("killed")
    while replicas.replicas[1].state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    assert replicas.state is EngineState.READY
    assert (await replicas.publish(publication(1))).accepted
    assert [one.state for one in replicas.status.replicas] == [EngineState.READY, EngineState.FAILED]
    assert replicas.status.last_error == "out of memory"
    plans[0].start_errors = ["out of memory"] * 10
    plans[0].engines[0].die("killed")
    while replicas.state is not EngineState.FAILED:
        await asyncio.sleep(0.001)
    with pytest.raises(EngineError, match="out of memory"):
        await replicas.ready(1)
    with pytest.raises(EngineError, match="out of memory"):
        await replicas.publish(publication(2))


async def test_one_that_is_given_up_over_a_version_has_no_say(replicas, plans, publication):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[1].deadly = {2}
    plans[1].start_errors = []
    publishing = asyncio.create_task(replicas.publish(publication(2)))
    while not plans[1].engines[0].stopped:
        await asyncio.sleep(0)
    plans[1].start_errors = ["out of memory"] * 10
    report = await publishing
    assert (report.accepted, report.version) == (True, 2)
    assert [one.state for one in replicas.status.replicas] == [EngineState.READY, EngineState.FAILED]


async def test_a_version_whose_publication_ends_in_an_error_leaves_no_file(replicas, plans, publication, tmp_path):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[1].unreadable_once = {2}
    with pytest.raises(PublicationError, match="no such file"):
        await replicas.publish(publication(2))
    assert [published[-1] for (published,) in lives(plans)] == [1, 1]
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["v1.safetensors"]


@pytest.mark.parametrize("adapter", [None, AdapterShape(4, 8, ("q_proj",))], ids=["all weights", "adapter"])
@pytest.mark.parametrize("refused", [False, True])
async def test_no_call_begins_until_the_slowest_has_switched(
    replicas, plans, publication, adapter: AdapterShape | None, refused: bool
):
    await replicas.start()
    await replicas.publish(publication(1))
    plans[1].drained.clear()
    plans[1].refused = {2} if refused else set()
    publishing = asyncio.create_task(replicas.publish(replace(publication(2), adapter=adapter)))
    while plans[0].engines[0].published != [1, 2]:
        await asyncio.sleep(0)
    with pytest.raises(EngineError, match=r"changing versions for over 0\.01 s"):
        await replicas.ready(0.01)
    calling = asyncio.create_task(replicas.ready(1))
    await asyncio.sleep(0.01)
    assert not calling.done()
    plans[1].drained.set()
    await calling
    assert [published[-1] for (published,) in lives(plans)] == [1 if refused else 2] * 2, "when the first call begins"
    assert (await publishing).accepted is not refused


async def test_one_engine_alone_holds_no_calls_back(plan, make_supervisor, publication):
    alone = EngineReplicas([make_supervisor(plan)])
    await alone.start()
    plan.drained.clear()
    publishing = asyncio.create_task(alone.publish(publication(1)))
    await asyncio.sleep(0.01)
    await alone.ready(0)  # the engine itself lets them wait, or serves them
    plan.drained.set()
    assert (await publishing).accepted
    await alone.stop()


async def test_a_call_goes_where_the_fewest_run(replicas):
    await replicas.start()
    first, second = replicas.replicas
    running = [replicas.begin() for _ in range(4)]
    assert Counter(running) == {first: 2, second: 2}
    replicas.end(second)
    assert replicas.begin() is second
    replicas.end(first)
    assert replicas.begin(avoid=[first]) is second
    assert replicas.begin(avoid=[first, second]) is first, "there is no other"


async def test_a_conversation_stays_with_its_replica_until_that_is_gone(replicas, plans):
    await replicas.start()
    home = replicas.begin(conversation="talk")
    replicas.end(home)
    (other,) = (one for one in replicas.replicas if one is not home)
    running = [replicas.begin(avoid=[other]), replicas.begin(avoid=[home])]
    for _ in range(3):
        assert replicas.begin(conversation="talk") is home
        replicas.end(home)
    for one in running:
        replicas.end(one)
    plans[replicas.replicas.index(home)].engines[0].die("killed")
    while home.state is EngineState.READY:
        await asyncio.sleep(0)
    assert replicas.begin(conversation="talk") is other
    await home.ready(1)
    assert replicas.begin(conversation="talk") is other
    assert asdict(replicas.status)["conversations"] == {"stayed": 4, "moved": 1}


async def test_without_an_engine_a_call_is_told_why(replicas):
    with pytest.raises(EngineError, match="the engine is stopped"):
        replicas.begin()


async def test_one_engine_alone_answers_as_it_did(plan, make_supervisor, publication):
    alone = EngineReplicas([make_supervisor(plan)])
    await alone.start()
    plan.refused = {2}
    assert (await alone.publish(publication(1))).accepted
    assert (await alone.publish(publication(2))).reason == "it differs"
    assert Path(alone.live["math"].path).exists()
    await alone.stop()


_FATES = st.sampled_from(["takes", "refuses", "dies", "dies once"])


# The fixtures are factories: nothing of one input is left for the next.
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fates=st.lists(st.tuples(_FATES, _FATES, _FATES), min_size=1, max_size=4))
async def test_whatever_happens_all_serve_the_same_and_what_was_said(
    fates, new_plan, make_supervisor, backoff, publication
):
    plans = [new_plan() for _ in range(3)]
    patient = replace(backoff, attempts=100)
    replicas = EngineReplicas([make_supervisor(plan, backoff=patient) for plan in plans])
    await replicas.start()
    live = 0
    for version, each in enumerate(fates, 1):
        for plan, fate in zip(plans, each, strict=True):
            plan.refused = {version} if fate == "refuses" else set()
            plan.deadly = {version} if fate == "dies" else set()
            plan.deadly_once = {version} if fate == "dies once" else set()
        report = await replicas.publish(publication(version))
        assert report.accepted == all(fate in ("takes", "dies once") for fate in each)
        live = version if report.accepted else live
        assert report.version == live
        served = [(plan.engines[-1].published or [0])[-1] for plan in plans]
        assert served == [live] * 3
        assert replicas.status.versions == {"math": live}
    await replicas.stop()


def test_each_has_logs_of_its_own_and_its_share_of_the_cores(tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_trainer.serving.settings.available_cores", lambda: 5)
    one = EngineSettings(tmp_path, ("math",), tmp_path, tmp_path / "logs")
    assert replica_settings(one, 1) == (one,)
    each = replica_settings(one, 2)
    assert [settings.log_dir.name for settings in each] == ["replica-1", "replica-2"]
    assert [settings.threads for settings in each] == [2, 2]
    assert [settings.threads for settings in replica_settings(one, 8)] == [1] * 8
    assert [settings.threads for settings in replica_settings(replace(one, threads=3), 2)] == [3, 3]
