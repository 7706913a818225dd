"""The list of attempts that steps are made of is what looking through all of history would give, in whatever order."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lightning_instrumentation import semconv

from lightning_trainer.store import SqliteStore, Store
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import participations
from lightning_trainer.store.tables.attempts import select_ended
from lightning_trainer.store.worklist.forgetting import forget_rollout
from lightning_trainer.store.worklist.waiting import count_lost, is_enrolled, only_for, stay_out, wanted
from lightning_trainer.types import PolicyVersion, RolloutMode, Span, VersionState

_HISTORIES = count(1)
_MODES = ("train", "baseline", "evaluate", "retried")


def span(attempt: str, number: int, *, root: bool = False, mode: str = "train", **more) -> Span:
    about = {
        semconv.ATTEMPT_ID: attempt,
        semconv.ROLLOUT_ID: f"r-{attempt}",
        semconv.GROUP_ID: f"g-{attempt[0]}",
        semconv.ROLLOUT_MODE: mode,
        **({semconv.ROLLOUT_ROOT: True} if root else {}),
    }
    return Span(f"{number + 1:032x}", f"{number + 1:016x}", None, "s", number, number + 1, about, **more)


def by_gateway(made: Span, policy: str) -> Span:
    return replace(made, scope=semconv.GATEWAY_SCOPE, attributes={**made.attributes, semconv.POLICY: policy})


async def start(store: Store, *trained: str, frozen: Sequence[str] = (), earlier: bool = False) -> None:
    """Start policies, as a daemon does."""
    await store.write(lambda connection: only_for(connection, trained))
    for policy in (*trained, *frozen):
        await store.begin_policy(policy)
    for policy in frozen:
        await store.write(lambda connection, policy=policy: stay_out(connection, policy))
    for policy in trained:
        await store.enroll(policy, earlier=earlier)


async def waiting(store: Store, policy: str) -> list[str]:
    return [one.attempt.attempt_id for one in await store.waiting_attempts(policy)]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_it_is_what_a_scan_of_history_finds(make_store, data) -> None:
    names = [f"{group}{number}" for group in "ab" for number in range(3)]
    events = data.draw(
        st.permutations([*names, *names, "begin p", "begin q", "enroll p", "enroll q", "step p", "step q"])
    )
    seen: set[str] = set()
    async with make_store(name=f"history-{next(_HISTORIES)}") as store:
        step = {"p": 0, "q": 0}
        for number, event in enumerate(events):
            verb, _, policy = event.partition(" ")
            if verb == "begin":
                await store.begin_policy(policy)
            elif verb == "enroll":
                await store.enroll(policy)
            elif verb == "step":
                taken = (await waiting(store, policy))[:2]
                step[policy] += 1
                await store.assign(
                    None, policy=policy, step=step[policy], attempt_ids=taken, ledger=[], state="skipped"
                )
            else:
                mode = data.draw(st.sampled_from(_MODES))
                await store.append([span(event, number, root=event in seen, mode=mode)])
                seen.add(event)
        for policy in ("p", "q"):
            await store.enroll(policy)

            def scan(connection: Connection, policy: str = policy) -> list[str]:
                modes = (RolloutMode.TRAIN, RolloutMode.BASELINE)
                found = [
                    one for mode in modes for one in select_ended(connection, mode=mode, policy=policy, earlier=False)
                ]
                return sorted(one.attempt_id for one in found)

            assert sorted(await waiting(store, policy)) == await store.scan(scan)


async def test_what_is_let_go_rests_until_its_group_or_its_policy_is_heard_of(make_store) -> None:
    async with make_store() as store:
        await store.enroll("p")
        await store.append([span("a0", 0, root=True), span("b0", 1, root=True)])
        await store.let_go("p", {"a0", "b0"})
        assert await waiting(store, "p") == []
        await store.append([span("a1", 2, root=True)])
        assert await waiting(store, "p") == ["a0", "a1"]
        await store.append([by_gateway(span("b1", 3), "p")])
        assert await waiting(store, "p") == ["a0", "b0", "a1"]
        (a0, b0, _) = await store.waiting_attempts("p")
        assert (a0.took_part, b0.took_part, a0.lacking) == (False, False, 0)


async def test_an_attempt_that_was_made_for_policies_is_theirs_whoever_was_called(make_store) -> None:
    async with make_store() as store:
        for policy in ("p", "q", "r"):
            await store.enroll(policy)
        root = span("a0", 0, root=True)
        await store.append([replace(root, attributes={**root.attributes, semconv.ROLLOUT_POLICIES: ("p", "q")})])
        took_part = {policy: (await store.waiting_attempts(policy))[0].took_part for policy in ("p", "q", "r")}
        assert took_part == {"p": True, "q": True, "r": False}
        assert await store.ended_by_group("g-", policy="q") == {"g-a": 1}
        assert await store.ended_by_group("g-", policy="r") == {}


async def test_an_attempt_is_wanted_by_the_policies_of_its_group_that_have_not_taken_it(make_store) -> None:
    async with make_store() as store:
        for policy in ("p", "q", "r"):
            await store.enroll(policy)
        await store.append([span(name, number, root=True) for number, name in enumerate(("a0", "a1", "b0"))])
        await store.append([by_gateway(span("a1", 3), "p"), by_gateway(span("a1", 4), "q")])
        for policy, expected in (("p", {"a0", "a1"}), ("q", set())):
            await store.assign(None, policy=policy, step=1, attempt_ids=["a0", "a1", "b0"], ledger=[], state="skipped")
            assert await store.scan(partial(wanted, attempt_ids=["a0", "a1", "b0"])) == expected


async def test_a_whole_group_is_lost_when_none_of_it_waits_or_was_taken(make_store) -> None:
    def lost(connection: Connection, **options) -> dict[str, int]:
        return count_lost(connection, "p", "g-", group_size=2, **options)

    async with make_store() as store:
        names = [f"{group}{number}" for group in "abcdef" for number in range(2 if group != "f" else 1)]
        await store.append([span(name, number, root=True) for number, name in enumerate(names)])
        assert await store.scan(lost) == {}, "nothing waits yet for a policy that was never started"
        await store.enroll("p")
        assert await store.scan(lost) == {}
        await store.assign(None, policy="p", step=1, attempt_ids=["a0", "a1"], ledger=[], state="skipped")
        await store.drop("g-b", reason="poison")
        await store.drop("c0", reason="poison")
        await store.let_go("p", {"d0", "d1", "f0"})
        for name in ("r-e0", "r-e1"):
            await store.write(lambda connection, name=name: forget_rollout(connection, name, now_ns=1))
        assert await store.scan(lost) == {"g-b": 2, "g-d": 2, "g-e": 2}
        assert await store.scan(partial(lost, limit=1)) == {"g-b": 2}
        assert await store.scan(partial(lost, after="g-b")) == {"g-d": 2, "g-e": 2}
        await store.assign(None, policy="p", step=2, attempt_ids=["b0", "b1"], ledger=[], state="skipped")
        assert "g-b" in await store.scan(lost), "taken along as dropped, it was in no step"


async def test_a_setting_that_changes_what_is_earlier_makes_the_list_anew(make_store) -> None:
    async with make_store() as store:
        await store.append([span("a0", 0, root=True)])
        await store.begin_policy("p")
        await store.append([span("a1", 1, root=True)])
        for earlier, expected in ((False, ["a1"]), (True, ["a0", "a1"]), (False, ["a1"])):
            await store.enroll("p", earlier=earlier)
            assert await waiting(store, "p") == expected


@pytest.mark.parametrize("earlier", [False, True])
async def test_nothing_waits_for_a_policy_while_it_is_away(make_store, earlier) -> None:
    """Its first steps after that would be made of what others answered."""

    async with make_store() as store:

        async def configure(*policies: str) -> None:
            await start(store, *policies, earlier=earlier)

        await configure("p", "q")
        await store.append([span("a0", 0, root=True)])
        await configure("q")
        await store.append([span("a1", 1, root=True)])
        await configure()
        await store.append([span("a2", 2, root=True)])
        await configure("p", "q")
        await store.append([span("a3", 3, root=True)])
        assert await waiting(store, "p") == ["a0", "a3"]
        assert await waiting(store, "q") == ["a0", "a1", "a3"]
        assert (await waiting(store, "never"), await store.begin_policy("p")) == ([], None)


@pytest.mark.parametrize("trained_before", [True, False])
async def test_nothing_waits_for_a_policy_while_it_is_frozen(make_store, trained_before) -> None:
    """Its steps after that would be made of what it answered beside others that have long changed."""

    async with make_store() as store:
        if trained_before:
            await start(store, "p", "q")
            await store.append([span("a0", 0, root=True)])
        for number in (1, 2):  # a start each
            await start(store, "q", frozen=("p",))
            await store.append([span(f"b{number}", number, root=True), span(f"c{number}", 2 + number)])
            assert not await store.scan(lambda connection: is_enrolled(connection, "p"))
            assert await store.scan(lambda connection: count_lost(connection, "p", "g-b", group_size=1)) == {}
        await start(store, "p", frozen=("q",))
        await store.append([span("c1", 5, root=True), span("d0", 6, root=True)])
        assert await waiting(store, "p") == [*(["a0"] if trained_before else []), "c1", "d0"]
        assert await waiting(store, "q") == [*(["a0"] if trained_before else []), "b1", "b2"]


async def test_a_policy_that_trains_what_was_recorded_takes_what_came_while_it_was_frozen(make_store) -> None:
    async with make_store() as store:
        await store.append([span("a0", 0, root=True)])
        await start(store, frozen=("p",))
        await store.append([span("a1", 1, root=True)])
        await start(store, "p", earlier=True)
        assert await waiting(store, "p") == ["a0", "a1"]


@pytest.mark.parametrize(
    "plan",
    [
        "waiting",
        "groups",
        "lost",
        "taken",
        "ledger",
        "step",
        "versions",
        "recent",
        "consumed",
        "rollout",
        "named",
        "holds",
        "feedback",
    ],
)
async def test_no_question_of_a_loop_or_a_route_reads_a_whole_table(tmp_path: Path, plan: str) -> None:
    from lightning_trainer.store.retention import sweep
    from lightning_trainer.store.tables import attempts, feedback, rollouts, steps, versions
    from lightning_trainer.store.worklist import feedback_rewards
    from lightning_trainer.store.worklist import waiting as worklist

    asked = {
        "waiting": lambda c: worklist.select(c, "p"),
        "lost": lambda c: worklist.count_lost(c, "p", "run/", group_size=2, limit=10),
        "groups": lambda c: attempts.count_ended(c, "run/", mode=RolloutMode.TRAIN, policy="p", limit=10),
        "ledger": lambda c: steps.select_ledger(c, "p", 3),
        "step": lambda c: (steps.select_steps(c, "p", only=3), steps.select_batches(c, "p", only=3)),
        "versions": lambda c: versions.select_served(c, "p", 10),
        "recent": lambda c: rollouts.select_recent(c, 10),
        "taken": lambda c: attempts.count_ended(c, "run/", mode=RolloutMode.TRAIN, taken=("p", 3, 4), limit=10),
        "consumed": lambda c: steps.select_consumed(c, attempt_ids=["a"], rollout_ids=["r"], response_ids=["x"]),
        "rollout": lambda c: attempts.select(c, rollout_id="r"),
        "named": lambda c: rollouts.select_named(c, "r"),
        "feedback": lambda c: (
            *(feedback.newest(c), feedback_rewards.select(c, ["t"]), feedback.said_lately(c, 1)),
            *(feedback.count_of(c, "a"), feedback.select(c, 1), feedback.first_after(c, 1), feedback.edits_after(c, 1)),
        ),
        "holds": lambda c: (sweep.oldest_span_ns(c), sweep.last_before(c, 7)),
    }[plan]

    class Spy:
        """Keeps the statements."""

        def __init__(self, connection: Connection) -> None:
            self.connection, self.plans = connection, []

        def execute(self, sql: str, parameters=()):
            self.plans += [row[3] for row in self.connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]
            return self.connection.execute(sql, parameters)

    async with SqliteStore(tmp_path / "s.sqlite") as store:

        def look(connection: Connection) -> list[str]:
            spy = Spy(connection)
            asked(spy)  # pyright: ignore[reportArgumentType]
            return spy.plans

        # What was asked about, what is no table, and one row for each whom somebody forgot.
        small = ("json_each", "SCAN named", "SCAN CONSTANT ROW", "SCAN forgotten")
        plans = await store.scan(look)
    scanned = [line for line in plans if line.startswith("SCAN ") and not any(one in line for one in small)]
    # The newest rollouts are read in the order of an index, and reading ends with the last that is asked for.
    assert [line for line in scanned if not (plan == "recent" and "USING INDEX attempts_by_start" in line)] == []


async def test_a_policy_that_begins_anew_forgets_what_its_first_model_answered(make_store) -> None:
    async with make_store() as store:
        for policy in ("p", "q"):
            await store.begin_policy(policy)
            await store.write(lambda connection, policy=policy: participations.start_from(connection, policy, "first"))
            await store.enroll(policy)
        # Of c0 a call was answered before, and it ends afterwards; d0 was answered elsewhere.
        await store.append([by_gateway(span("a0", 0), "p"), span("a0", 1, root=True), by_gateway(span("c0", 2), "p")])
        await store.append([span("d0", 3, root=True)])

        def begin_anew(connection: Connection) -> str | None:
            connection.execute("INSERT INTO verdicts VALUES ('p', 'e0', 0, 1.0), ('q', 'e0', 0, 1.0)")
            participations.begin_anew(connection, "p", "second")
            return participations.started_from(connection, "p")

        assert await store.write_in_turn("p", begin_anew) == "second"
        await store.append([span("c0", 4, root=True), by_gateway(span("b0", 5), "p"), span("b0", 6, root=True)])
        assert await waiting(store, "p") == ["d0", "b0"]
        assert await waiting(store, "q") == ["a0", "d0", "c0", "b0"]
        rows = await store.scan(lambda connection: connection.execute("SELECT policy FROM verdicts").fetchall())
        assert [tuple(row) for row in rows] == [("q",)]
        assert await store.scan(lambda connection: participations.started_from(connection, "q")) == "first"


async def test_a_policy_is_untrained_until_a_step_may_have_changed_its_weights(make_store) -> None:
    async with make_store() as store:

        async def is_untrained() -> bool:
            return await store.scan(lambda connection: participations.is_untrained(connection, "p"))

        await store.put_version(PolicyVersion("p", 0, 0, VersionState.LIVE, 1))
        await store.put_version(PolicyVersion("q", 1, 1, VersionState.LIVE, 1))
        await store.assign(None, policy="p", step=1, attempt_ids=[], ledger=[], state="skipped")
        assert await is_untrained()
        await store.put_version(PolicyVersion("p", 2, 2, VersionState.TRAINED, 1))
        assert not await is_untrained()
