"""A user without a home directory (in a container, say) is told what to name; nothing is made in a folder called ~."""

import pwd

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.access.known import known_daemon
from lightning_instrumentation.folders import named_path
from lightning_instrumentation.settings import default_spool_dir

VARIABLES = ("HOME", "XDG_STATE_HOME", "LIGHTNING_SPOOL_DIR", "LIGHTNING_ACCESS_DIR")


@pytest.fixture(autouse=True)
def homeless(monkeypatch):
    def unknown(_):
        raise KeyError("no such user")

    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_init_says_what_to_set():
    with pytest.raises(lt.ConfigurationError, match=r"no home directory.*set HOME or XDG_STATE_HOME"):
        lt.init()


@pytest.mark.parametrize("variable", ["LIGHTNING_SPOOL_DIR", "XDG_STATE_HOME"])
def test_a_named_folder_is_enough(monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(tmp_path))
    assert tmp_path in (default_spool_dir(), *default_spool_dir().parents)


def test_no_daemon_is_known_where_none_can_have_left_word():
    assert known_daemon("http://127.0.0.1:8321") is None


def test_a_home_that_is_not_there_is_refused():
    with pytest.raises(lt.ConfigurationError, match=r"spool_dir is '~nobody-at-all/x', and there is no such home"):
        named_path("~nobody-at-all/x", "spool_dir")
