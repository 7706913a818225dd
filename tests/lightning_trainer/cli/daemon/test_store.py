"""`lightning-trainer store` takes along what the store's records need, and says what it leaves."""

import asyncio
import shutil
from pathlib import Path

import pytest

from lightning_trainer.cli.daemon.store import backup, migrate, restore
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import PolicyVersion, StepReport, TrainingBatch, VersionState


@pytest.fixture
def rolled_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose store has five trained steps, of which a stopped daemon's user went back to the third."""

    async def fill() -> None:
        async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
            for step in range(1, 6):
                batch = TrainingBatch("math", step, ())
                await store.assign(batch, policy="math", step=step, attempt_ids=[], ledger=[])
                await store.finish_step("math", StepReport(step, {}, {}, 1, 1, 1, {}))
                await store.put_version(PolicyVersion("math", step, step, VersionState.LIVE, step))
            await store.put_rollback("math", 3, at_ns=6)

    (tmp_path / "lightning.toml").write_text('[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\n')
    asyncio.run(fill())
    for step in (2, 4):
        (tmp_path / ".lightning" / "checkpoints" / "math" / f"step-{step:08d}").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_backup_has_the_checkpoint_that_training_goes_on_from(rolled_back, capsys):
    backup(None, rolled_back / "backup")
    kept = [one.name for one in (rolled_back / "backup" / "checkpoints" / "math").iterdir()]
    assert kept == ["step-00000002"], "the fourth is of what was rolled back"
    assert "checkpoint 2 of math" in capsys.readouterr().out


def test_a_backup_has_the_live_weights_where_training_went_on_from_what_was_held_back(tmp_path, monkeypatch, capsys):
    state = tmp_path / ".lightning"

    async def fill() -> None:
        async with SqliteStore(state / "lightning.sqlite") as store:
            for policy, refused in (("math", 3), ("other", 4)):
                for step in range(1, 4):
                    outcome = VersionState.REFUSED if step >= refused else VersionState.LIVE
                    await store.assign(
                        TrainingBatch(policy, step, ()), policy=policy, step=step, attempt_ids=[], ledger=[]
                    )
                    await store.finish_step(policy, StepReport(step, {}, {}, 1, 1, 1, {}))
                    await store.put_version(PolicyVersion(policy, step, step, outcome, step))

    asyncio.run(fill())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lightning.toml").write_text('[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\n')
    for policy in ("math", "other"):
        (state / "checkpoints" / policy / "step-00000003").mkdir(parents=True)
        for version in (1, 2, 3):
            weights = state / "versions" / policy / f"v{version:08d}" / "model.safetensors"
            weights.parent.mkdir(parents=True)
            weights.write_text(f"{policy} {version}")
    backup(None, tmp_path / "backup")
    assert "checkpoint 3 of math, checkpoint 3 of other, weights of math@v2 in " in capsys.readouterr().out
    shutil.rmtree(state)
    restore(None, tmp_path / "backup")
    assert "what you decided after the backup is not in it: before the next start, drop," in capsys.readouterr().out
    assert [str(one.relative_to(state)) for one in state.glob("versions/*/*")] == ["versions/math/v00000002"]
    assert (state / "versions" / "math" / "v00000002" / "model.safetensors").read_text() == "math 2"
    restore(None, tmp_path / "backup")
    said = capsys.readouterr().out
    asides = [state / "checkpoints" / f"{policy}~1" for policy in ("math", "other")]
    asides.append(state / "versions" / "math~1")
    assert f"not the backup's are in {asides[0]} and {asides[1]} and {asides[2]} now" in said


@pytest.mark.process
@pytest.mark.parametrize("shared", [True, False])
def test_moving_a_store_says_what_has_to_be_moved_with_it(rolled_back, postgres_url, capsys, shared):
    where = 'shared_dir = "shared"\n' if shared else ""
    with (rolled_back / "lightning.toml").open("a") as file:
        file.write(f'[store]\nurl = "{postgres_url}"\n{where}')
    migrate(None)
    said = capsys.readouterr().out
    assert ("the folders checkpoints and versions of" in said) == shared
    backup(None, rolled_back / "backup")
    assert ("checkpoint 2 of math" in capsys.readouterr().out) != shared, "it is looked for where it has to be"
