"""A page of versions says of each what the list of all says: where it came from, and what it earned."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lightning_trainer.store import SqliteStore, StepState
from lightning_trainer.types import PolicyVersion, TrainingBatch, VersionState
from lightning_trainer.versions.lineage import Lineage
from lightning_trainer.versions.listing import VersionRow, best_version, list_versions


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
async def test_pages_are_parts_of_the_whole(tmp_path_factory, make_policy, data) -> None:
    events = data.draw(st.lists(st.sampled_from(["train", "train", "skip", "back"]), min_size=1, max_size=14))
    async with SqliteStore(tmp_path_factory.mktemp("pages") / "s.sqlite") as store:
        await store.put_version(PolicyVersion("math", 0, 0, VersionState.LIVE, 0))
        step, trained = 0, [0]
        for event in events:
            if event == "back":
                await store.put_rollback("math", data.draw(st.sampled_from(trained)), at_ns=1)
                continue
            step += 1
            batch = TrainingBatch("math", step, ()) if event == "train" else None
            state = StepState.ASSIGNED if batch else StepState.SKIPPED
            metrics = {"reward/mean": step / 10}
            await store.assign(batch, policy="math", step=step, attempt_ids=[], ledger=[], state=state, metrics=metrics)
            if batch is not None:
                trained.append(step)
                await store.put_version(PolicyVersion("math", step, step, VersionState.LIVE, step))
        lineage = Lineage(trained[1:], await store.rollbacks("math"))
        earned = {lineage.parent(one): one / 10 for one in trained[1:]}
        expected = [(version, lineage.parent(version), earned.get(version)) for version in trained]
        size, before, found = data.draw(st.integers(1, 5)), None, []
        while page := await store.scan(
            lambda connection, before=before: list_versions(
                connection, make_policy(), (), before=before, newest=size, fresh=False
            )
        ):
            found = [(row["version"], row["parent"], row["reward"]) for row in page] + found
            before = page[0]["version"]
        assert found == expected


def scored(version: int, held_out: float | None, attempts: int = 64, error: float | None = 0.05) -> VersionRow:
    return VersionRow(
        version=version,
        parent=None,
        state="stored",
        created_ns=0,
        reward=None,
        held_out=held_out,
        held_out_attempts=attempts,
        held_out_error=error,
        reason=None,
        canary=None,
    )


def test_the_best_version_is_not_one_of_a_lucky_attempt() -> None:
    assert best_version([scored(1, 0.6), scored(2, 0.7), scored(3, 0.7), scored(4, None, 0, None)]) == 3
    assert best_version([scored(1, 0.6), scored(2, 1.0, attempts=1, error=0.4)]) == 1
    assert best_version([scored(1, None, 0, None)]) is None
