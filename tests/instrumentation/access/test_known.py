"""A token left for this user's clients is found by them, and believed only where nobody else can have left it."""

import os
import stat

import pytest
from lightning_instrumentation.access.known import KnownDaemon, access_dir, known_daemon, remember

URL = "http://127.0.0.1:8321"
TOKEN = "t" * 43


def test_what_is_left_is_found_under_every_name_of_the_address():
    remember(URL, KnownDaemon(TOKEN))
    for url in (URL, "http://localhost:8321", "http://[::1]:8321/", "http://0.0.0.0:8321", f"{URL}/v1"):
        known = known_daemon(url)
        assert known is not None
        assert known.token == TOKEN
    assert known_daemon("http://127.0.0.1:8322") is None


def test_nobody_else_can_read_it():
    path = remember(URL, KnownDaemon(TOKEN))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(access_dir().stat().st_mode) & 0o077 == 0


def test_a_daemon_without_a_token_is_known_to_have_none():
    remember(URL, KnownDaemon(None))
    known = known_daemon(URL)
    assert known is not None
    assert known.token is None


@pytest.mark.parametrize("mode", [0o644, 0o620, 0o606])
def test_a_file_that_others_may_read_or_write_is_not_believed(mode):
    remember(URL, KnownDaemon(TOKEN)).chmod(mode)
    assert known_daemon(URL) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_somebody_else_is_not_believed():
    os.chown(remember(URL, KnownDaemon(TOKEN)), 65534, 65534)
    assert known_daemon(URL) is None


def test_neither_is_a_link_nor_what_is_no_such_file(tmp_path):
    path = remember(URL, KnownDaemon(TOKEN))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert known_daemon(URL) is None
    path.unlink()
    for content in ("", "[]", "{}", '{"token": 7}', "\xff"):
        path.write_text(content)
        path.chmod(0o600)
        assert known_daemon(URL) is None
    path.unlink()
    os.mkfifo(path, 0o600)
    assert known_daemon(URL) is None
