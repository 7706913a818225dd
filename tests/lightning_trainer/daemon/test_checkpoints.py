"""Whatever carries a checkpoint's final name is whole; the rest is swept away."""

from lightning_trainer.daemon.checkpoints import CheckpointFolder


def test_the_newest_whole_checkpoint_counts_and_interrupted_ones_do_not(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for name in ("step-00000002", "step-00000010", "step-00000005", "step-00000011.tmp"):
        (tmp_path / name).mkdir()

    assert folder.steps() == [2, 5, 10]
    assert folder.latest() == 10

    folder.prune()

    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["step-00000005", "step-00000010"]


def test_a_policy_without_checkpoints_has_none(tmp_path):
    assert CheckpointFolder(tmp_path / "absent", keep=1).latest() is None
    CheckpointFolder(tmp_path / "absent", keep=1).prune()
