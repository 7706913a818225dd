"""Fixtures of the examples' tests: the same stubs as the client's."""

import importlib.util
import sys
from pathlib import Path

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
