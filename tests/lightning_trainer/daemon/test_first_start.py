"""A policy whose configuration names another model: anew while nothing is trained, refused afterwards."""

from pathlib import Path

import pytest

from lightning_trainer.daemon.first_start import begin
from lightning_trainer.errors import ConfigError, TurnLostError
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.worklist.waiting import only_for
from lightning_trainer.types import PolicyVersion, VersionState


@pytest.fixture
def model(tmp_path: Path):
    """Make the folder of a model with these weights."""

    def make(weights: str) -> Path:
        folder = tmp_path / f"model-{weights}"
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_text(weights)
        return folder

    return make


@pytest.fixture
async def store(tmp_path):
    async with SqliteStore(tmp_path / "store.sqlite") as opened:
        yield opened


async def test_another_model_begins_anew_until_a_step_has_changed_weights(
    store, model, make_policy, attempt_spans
) -> None:
    policy = make_policy()
    assert await begin(policy, model("a"), store) is None
    await store.enroll(policy.name)
    await store.append(attempt_spans("a1", [1, 2], 10))
    await store.put_version(PolicyVersion(policy.name, 0, 0, VersionState.LIVE, 1))
    assert await begin(policy, model("a"), store) is None
    assert len(await store.waiting_attempts(policy.name)) == 1

    said = await begin(policy, model("b"), store)
    assert said is not None
    assert said.startswith(f"policy {policy.name!r} begins anew, from {policy.model}: ")
    assert await store.waiting_attempts(policy.name) == []
    assert await begin(policy, model("b"), store) is None

    await store.put_version(PolicyVersion(policy.name, 1, 1, VersionState.LIVE, 1))
    assert await begin(policy, model("b"), store) is None
    with pytest.raises(
        ConfigError, match=r"math.model = .*other weights than those of .*model-a; .* export.* state_dir"
    ):
        await begin(policy, model("a"), store)
    assert await begin(policy, model("b"), store) is None


async def test_what_was_recorded_before_the_first_start_is_said_once(store, model, make_policy, attempt_spans) -> None:
    await store.append(attempt_spans("a1", [1, 2], 10))
    said = await begin(make_policy(), model("a"), store)
    assert said == (
        "1 rollout recorded before policy 'math' was first started stay readable and are not trained: training begins "
        "with what comes after"
    )
    assert await begin(make_policy(), model("a"), store) is None


async def test_a_policy_that_is_frozen_first_begins_its_list_when_it_is_thawed(
    store, model, make_policy, attempt_spans
) -> None:
    await begin(make_policy(train=False), model("a"), store)
    await store.append(attempt_spans("a1", [1, 2], 10))
    await begin(make_policy(), model("a"), store)
    await store.write(lambda connection: only_for(connection, ["math"]))
    await store.enroll("math")
    await store.append(attempt_spans("a2", [1, 2], 20))
    assert [one.attempt.attempt_id for one in await store.waiting_attempts("math")] == ["a2"]


async def test_a_policy_that_another_daemon_trains_does_not_begin_anew(store, model, make_policy, monkeypatch) -> None:
    await begin(make_policy(), model("a"), store)

    async def refuse(*_: object) -> None:
        raise TurnLostError("policy 'math' is trained by the daemon http://other:8321: ask that one, or stop it")

    monkeypatch.setattr(store, "write_in_turn", refuse)
    with pytest.raises(ConfigError, match=r"is another model than the store's: .* trained by the daemon http://other"):
        await begin(make_policy(), model("b"), store)
