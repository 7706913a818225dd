"""Runs one Python function of the user's: ``python -m ... module:function``, JSON in, JSON on the last line out.

The function gets the judge's input as a dict, and returns a number, ``{"score": ..., "reason": ...}``, None, or for a
whole group ``{"scores": {...}}``. Anything it prints goes to standard error.
"""

import contextlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main(named: str) -> None:
    """Answer the question on standard input with the named function, as JSON on standard output."""
    question = json.load(sys.stdin)
    sys.path.insert(0, os.getcwd())
    with contextlib.redirect_stdout(sys.stderr):
        said = _function(named)(question)
    print(json.dumps(said))


def _function(named: str) -> Callable[[Any], Any]:
    place, _, name = named.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    path = Path(place)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


if __name__ == "__main__":
    main(sys.argv[1])
