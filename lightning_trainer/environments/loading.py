"""The module and the digest of a user's Python file; also used in the interpreters of third-party environments."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def digest_of(path: Path) -> str:
    """Return the default version, a digest of the file: different code is a different version."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


def module_of(path: Path) -> ModuleType:
    """Run a file and return its module; it may import its neighbors by their bare names.

    Raises:
        ImportError: it is not a Python file.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
