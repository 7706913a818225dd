"""Whatever carries a checkpoint's final name is whole; the rest is swept away."""

from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder


def test_the_newest_whole_checkpoint_counts_and_interrupted_ones_do_not(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for name in ("step-00000002", "step-00000010", "step-00000005", "step-00000011.tmp"):
        (tmp_path / name).mkdir()

    assert folder.steps() == [2, 5, 10]
    assert folder.latest(range(20)) == 10

    folder.prune(range(20))

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]


def test_a_policy_without_checkpoints_has_none(tmp_path):
    assert CheckpointFolder(tmp_path / "absent", keep=1).latest([0, 1]) is None
    CheckpointFolder(tmp_path / "absent", keep=1).prune([0, 1])


def test_checkpoints_of_steps_that_were_rolled_back_are_not_gone_on_from(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=1)
    for step in (2, 4, 6):
        folder.path(step).mkdir()

    assert folder.latest((0, 1, 2, 3, 4, 7)) == 4

    folder.prune((0, 1, 2, 3, 4, 7))

    assert folder.steps() == [4]
