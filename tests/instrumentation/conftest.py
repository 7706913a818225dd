"""Fixtures of the client's tests; the stubs are loaded by path because the adapters' tests use them too."""

import importlib.util
import sys
from pathlib import Path

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.runtime import runtime


def _loaded(name: str, file: str):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_stubs = _loaded("lightning_test_stubs", "stubs.py")
_formats = _loaded("lightning_test_formats", "formats.py")
_routing = _loaded("lightning_test_routing", "routing_stubs.py")

receiver = _stubs.receiver
model = _stubs.model
recording = _stubs.recording
host = _routing.host
daemon = _routing.daemon
begin = _routing.begin
nothing_of_the_users = _stubs.nothing_of_the_users


@pytest.fixture
def refuses():
    """``refuses()``: whether the daemon does not take what waits for it, as soon as that has been tried twice, so that
    the first has been said; ``lt.flush`` tries until its time is over."""

    def look() -> bool:
        lt.flush(0.0)  # has what is deferred done
        started = runtime()
        assert started is not None
        return not any(started.outbox.sender.flush(10.0, patient=False) for _ in range(2))

    return look


@pytest.fixture(scope="session")
def shared_model_server():
    server = _stubs.ModelServer()
    server.formats = _formats.FORMATS
    server.start()
    yield server
    server.stop()
