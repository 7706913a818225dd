"""Fixtures of the client's tests; the stubs are loaded by path because the adapters' tests use them too."""

import importlib.util
import sys
from pathlib import Path

import pytest


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


@pytest.fixture(scope="session")
def shared_model_server():
    server = _stubs.ModelServer()
    server.formats = _formats.FORMATS
    server.start()
    yield server
    server.stop()
