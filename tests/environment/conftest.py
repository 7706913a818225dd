"""The set-up is a script of its own, in no package: it is loaded from its file."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ENVIRONMENT = Path(__file__).parents[2] / "environment"


def _load(name: str) -> ModuleType:
    sys.path.insert(0, str(ENVIRONMENT))
    try:
        return import_module(name)
    finally:
        sys.path.remove(str(ENVIRONMENT))


@pytest.fixture(scope="module", autouse=True)
def reaches_the_index(machines_authorities) -> Iterator[None]:
    with machines_authorities():
        yield


@pytest.fixture(scope="session")
def plan() -> ModuleType:
    return _load("install_plan")


@pytest.fixture(scope="session")
def set_up(plan: ModuleType) -> ModuleType:
    return _load("install")


@pytest.fixture(scope="session")
def root() -> Path:
    return ENVIRONMENT.parent
