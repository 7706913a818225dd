"""Nobody but its owner reads the state folder."""

import stat

import pytest

from lightning_trainer.daemon.state_folder import close_to_others
from lightning_trainer.errors import ConfigError


def _mode(folder) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_new_one_is_its_owners_alone(tmp_path):
    close_to_others(tmp_path / "a" / "state")
    assert _mode(tmp_path / "a" / "state") == 0o700


def test_one_that_was_open_is_closed_and_that_is_said(tmp_path, caplog):
    tmp_path.chmod(0o755)
    close_to_others(tmp_path)
    assert _mode(tmp_path) == 0o700
    assert "was open to other users (mode 755); it is closed to them now" in caplog.text


def test_what_is_not_a_folder_is_one_sentence(tmp_path):
    (tmp_path / "state").touch()
    with pytest.raises(ConfigError, match=r"\[daemon\] state_dir = .* cannot be made: File exists"):
        close_to_others(tmp_path / "state")
