"""Fixtures of the examples' tests: the same stubs as the client's."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

_EXAMPLES = Path(__file__).parents[2] / "examples"
_NAME = "lightning_test_stubs"
if _NAME not in sys.modules:
    _spec = importlib.util.spec_from_file_location(_NAME, Path(__file__).parents[1] / "instrumentation" / "stubs.py")
    assert _spec is not None
    assert _spec.loader is not None
    sys.modules[_NAME] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[_NAME])
_stubs = sys.modules[_NAME]

receiver = _stubs.receiver
shared_model_server = _stubs.shared_model_server
model = _stubs.model


@pytest.fixture(scope="module")
def bare_names() -> Iterator[None]:
    """Each example imports its modules by names that others use too: none of theirs is there, and none stays."""
    path, before = list(sys.path), _of_examples()
    for name in before:
        del sys.modules[name]
    sys.path[:] = [entry for entry in path if not Path(entry).is_relative_to(_EXAMPLES)]
    yield
    for name in _of_examples():
        del sys.modules[name]
    sys.modules.update(before)
    sys.path[:] = path


def _of_examples() -> dict[str, ModuleType]:
    files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
    return {name: sys.modules[name] for name, file in files.items() if file and Path(file).is_relative_to(_EXAMPLES)}
