"""Fixtures of the adapters' tests: the same stubs as the client's, and what the prompts themselves say."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _loaded(name: str, file: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


_HERE = Path(__file__).parent
_stubs = _loaded("lightning_test_stubs", _HERE.parent / "instrumentation" / "stubs.py")

receiver = _stubs.receiver
shared_model_server = _stubs.shared_model_server
model = _stubs.model
recording = _stubs.recording
nothing_of_the_users = _stubs.nothing_of_the_users


@pytest.fixture(scope="session")
def truth() -> ModuleType:
    return _loaded("lightning_test_truth", _HERE / "truth.py")
