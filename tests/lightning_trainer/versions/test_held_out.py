"""A version's score is the mean reward of the evaluations that it sampled alone."""

from dataclasses import replace

import pytest
from lightning_instrumentation import semconv

from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables import participations
from lightning_trainer.types import RolloutMode, Span
from lightning_trainer.versions import held_out
from lightning_trainer.versions.held_out import (
    HeldOutScore,
    held_out_scores,
    refresh_verdicts,
    select_scores,
    select_verdicts,
)


@pytest.fixture
def evaluation(attempt_spans, reward_span):
    """The spans of an evaluation attempt whose one call was sampled by ``version``."""

    def make(name: str, version: int, reward: float | None) -> list[Span]:
        spans = attempt_spans(name, [1, 2], 10)
        changed = [
            replace(
                span,
                attributes={
                    **span.attributes,
                    semconv.ROLLOUT_MODE: RolloutMode.EVALUATE.value,
                    **({semconv.POLICY_VERSION: version} if semconv.POLICY_VERSION in span.attributes else {}),
                },
            )
            for span in spans
        ]
        return changed if reward is None else [*changed, reward_span(reward, attempt=name)]

    return make


async def test_scores_are_means_by_version_and_training_attempts_do_not_count(
    tmp_path, make_policy, evaluation, attempt_spans, reward_span, monkeypatch
):
    expected = {4: HeldOutScore(2 / 3, 3), 5: HeldOutScore(0.5, 1)}
    read: list[tuple[str, ...]] = []
    select = held_out.select_of_attempts
    monkeypatch.setattr(held_out, "select_of_attempts", lambda c, ids: (read.append(tuple(ids)), select(c, ids))[1])
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        for name, version, reward in (("a", 4, 1.0), ("b", 4, 0.0), ("c", 4, 1.0), ("d", 5, 0.5), ("e", 5, None)):
            await store.append(evaluation(name, version, reward))
        await store.append([*attempt_spans("trained", [1, 2], 10), reward_span(1.0, attempt="trained")])
        policy = make_policy()
        assert held_out_scores(await store.scan(lambda connection: select_verdicts(connection, policy))) == expected
        await refresh_verdicts(store, policy)
        assert await store.scan(lambda connection: select_scores(connection, policy, 0, 9)) == expected
        read.clear()
        await refresh_verdicts(store, policy)
        assert read == []
        await store.append([reward_span(0.9, attempt="e")])
        seen = await store.scan(lambda connection: select_verdicts(connection, policy))
        assert (sorted(seen), read) == (["a", "b", "c", "d", "e"], [("e",)])
        await refresh_verdicts(store, policy)
        assert (await store.scan(lambda connection: select_scores(connection, policy, 5, 5)))[5].attempts == 2
        other = make_policy(reward="another")
        assert await store.scan(lambda connection: select_verdicts(connection, other)) == {}


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
            found = await store.scan(lambda connection, again=again: select_scores(connection, again, 0, 0))
            assert found[0].attempts == 1
