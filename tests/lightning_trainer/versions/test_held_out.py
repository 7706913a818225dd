"""A version's score is the mean reward of the evaluations that it sampled alone."""

from dataclasses import replace
from typing import Any

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.store.postgres.store import PostgresStore
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables import participations
from lightning_trainer.types import RolloutMode, Span
from lightning_trainer.versions import held_out
from lightning_trainer.versions.held_out import (
    HeldOutScore,
    Verdict,
    held_out_scores,
    refresh_verdicts,
    select_newest_scores,
    select_scores,
    select_verdicts,
)


@pytest.fixture
def evaluation(attempt_spans, reward_span):
    """The spans of an evaluation attempt whose one call was sampled by ``version``; at a task of its own by default."""

    def make(name: str, version: int, reward: float | None, task: str | None = None) -> list[Span]:
        spans = attempt_spans(name, [1, 2], 10)
        changed = [
            replace(
                span,
                attributes={
                    **span.attributes,
                    semconv.ROLLOUT_MODE: RolloutMode.EVALUATE.value,
                    semconv.GROUP_ID: f"run/held-out/{task or name}",
                    **({semconv.POLICY_VERSION: version} if semconv.POLICY_VERSION in span.attributes else {}),
                },
            )
            for span in spans
        ]
        return changed if reward is None else [*changed, reward_span(reward, attempt=name)]

    return make


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.process)])
async def on_each_database(request, tmp_path):
    """A store on SQLite, then one on PostgreSQL."""
    on_sqlite = request.param == "sqlite"
    path = tmp_path / "lightning.sqlite"
    async with SqliteStore(path) if on_sqlite else PostgresStore(request.getfixturevalue("postgres_url")) as store:
        yield store


async def test_scores_are_means_by_version_and_training_attempts_do_not_count(
    on_each_database, make_policy, evaluation, attempt_spans, reward_span, monkeypatch
):
    store = on_each_database
    # Squared deviations: 2/3 over 3 rewards, 0 over one; so a variance of 2/3 / 2, and its share of each mean.
    about: Any = pytest.approx
    expected = {4: HeldOutScore(2 / 3, 3, about(1 / 3)), 5: HeldOutScore(0.5, 1, about(3**-0.5))}
    read: list[tuple[str, ...]] = []
    select = held_out.select_of_attempts
    monkeypatch.setattr(held_out, "select_of_attempts", lambda c, ids: (read.append(tuple(ids)), select(c, ids))[1])
    for name, version, reward in (("a", 4, 1.0), ("b", 4, 0.0), ("c", 4, 1.0), ("d", 5, 0.5), ("e", 5, None)):
        await store.append(evaluation(name, version, reward))
    await store.append([*attempt_spans("trained", [1, 2], 10), reward_span(1.0, attempt="trained")])
    policy = make_policy()
    assert held_out_scores(await store.scan(lambda connection: select_verdicts(connection, policy))) == expected
    await refresh_verdicts(store, policy)
    assert await store.scan(lambda connection: select_scores(connection, policy.name, 0, 9)) == expected
    assert await store.scan(lambda connection: select_newest_scores(connection, policy.name, 2)) == expected
    assert [*await store.scan(lambda connection: select_newest_scores(connection, policy.name, 1))] == [5]
    read.clear()
    await refresh_verdicts(store, policy)
    assert read == []
    await store.append([reward_span(0.9, attempt="e")])
    seen = await store.scan(lambda connection: select_verdicts(connection, policy))
    assert (sorted(seen), read) == (["a", "b", "c", "d", "e"], [("e",)])
    await refresh_verdicts(store, policy)
    assert (await store.scan(lambda connection: select_scores(connection, policy.name, 5, 5)))[5].attempts == 2
    other = make_policy(reward="another")
    assert await store.scan(lambda connection: select_verdicts(connection, other)) == {}


async def test_a_task_that_was_tried_more_often_counts_once(on_each_database, make_policy, evaluation):
    """An evaluation was interrupted after its first task and started again: 0 twice, then 1 and 1."""
    store = on_each_database
    for name, task, reward in (("a", "first", 0.0), ("b", "first", 0.0), ("c", "second", 1.0), ("d", "third", 1.0)):
        await store.append(evaluation(name, 4, reward, task))
    about: Any = pytest.approx
    policy = make_policy()
    expected = {4: HeldOutScore(about(2 / 3), 4, about(1 / 3))}
    assert held_out_scores(await store.scan(lambda connection: select_verdicts(connection, policy))) == expected
    await refresh_verdicts(store, policy)
    assert await store.scan(lambda connection: select_scores(connection, policy.name, 0, 9)) == expected
    assert held_out_scores(await store.scan(lambda connection: select_verdicts(connection, policy))) == expected


def test_a_score_is_worth_less_the_fewer_attempts_it_is_of():
    found = {f"old-{n}": Verdict(1, float(n % 4 > 0)) for n in range(200)} | {"lucky": Verdict(2, 1.0)}
    old, lucky = held_out_scores(found).values()
    assert (old.mean, lucky.mean) == (0.75, 1.0)
    assert old.rank > lucky.rank
    assert lucky.error == pytest.approx(200**0.5 * (old.error or 0.0))


def test_with_equally_many_attempts_the_higher_mean_is_worth_more():
    found = {"a": Verdict(1, 0.0), "b": Verdict(1, 1.0), "c": Verdict(2, 0.6), "d": Verdict(2, 0.6)}
    one, other = held_out_scores(found).values()
    assert other.rank > one.rank
    assert other.error == one.error


def test_rewards_that_do_not_differ_say_no_more_of_one_attempt_than_of_many():
    found = {f"old-{n}": Verdict(1, 1.0) for n in range(20)} | {"lucky": Verdict(2, 1.0)}
    old, lucky = held_out_scores(found).values()
    assert (old.error, lucky.error) == (0.0, 0.0)
    assert old.rank > lucky.rank


def test_where_each_version_has_one_attempt_nothing_is_known_of_the_error():
    one, other = held_out_scores({"a": Verdict(1, 0.2), "b": Verdict(2, 0.4)}).values()
    assert (one.error, other.error) == (None, None)
    assert other.rank > one.rank


async def test_an_attempt_that_two_versions_sampled_says_nothing_of_either(tmp_path, make_policy, evaluation):
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        first, second = evaluation("a", 4, 1.0), evaluation("a", 5, None)
        other_call = replace(
            second[1], attributes={**second[1].attributes, semconv.RESPONSE_ID: "another"}, trace_id=first[0].trace_id
        )
        await store.append([*first, other_call])
        assert await store.scan(lambda connection: select_verdicts(connection, make_policy())) == {}


async def test_what_version_0_of_another_model_earned_is_not_its_score(tmp_path, make_policy, evaluation):
    policy = make_policy()
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.begin_policy(policy.name)
        await store.append([*evaluation("a", 0, 0.0), *evaluation("b", 1, 0.5)])
        await refresh_verdicts(store, policy)
        await store.write(lambda connection: participations.begin_anew(connection, policy.name, "another"))
        await store.append(evaluation("c", 0, 1.0))
        for again in (policy, make_policy(reward={"reward": 2.0})):  # read from the beginning with other rewards
            await refresh_verdicts(store, again)
            found = await store.scan(lambda connection, again=again: select_scores(connection, again.name, 0, 0))
            assert found[0].attempts == 1
