"""``make docs``: the site's reference has what users import."""

import importlib.util
import pkgutil
import subprocess
from pathlib import Path
from types import ModuleType

import lightning_instrumentation
import pytest

from lightning_trainer import config, environments, rollouts
from lightning_trainer.config.sections import Section

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_of_the_docs", ROOT / "environment" / "site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_has_every_public_name_of_the_client(site: ModuleType) -> None:
    public = set(lightning_instrumentation.__all__) - {"State"}  # what `state` returns, which nobody names
    assert set(site.CLIENT) == public
    for name, module in site.CLIENT.items():
        found = importlib.import_module(f"lightning_instrumentation.{module}")
        assert getattr(found, name) is getattr(lightning_instrumentation, name)


def test_the_reference_has_every_class_of_the_configuration(site: ModuleType) -> None:
    _, package, objects = site.REFERENCE["configuration"]
    assert {kind.__module__ for kind in _sections()} <= {f"{package}.{one}" for one in objects}


@pytest.mark.parametrize(("page", "package"), [("rollouts", rollouts), ("environments", environments)])
def test_the_reference_has_every_public_name_of_a_package(site: ModuleType, page: str, package: ModuleType) -> None:
    _, _, objects = site.REFERENCE[page]
    assert set(package.__all__) <= {one.rpartition(".")[2] for one in objects}


@pytest.mark.slow
def test_the_site_is_built_and_describes_them_and_every_setting(site: ModuleType) -> None:
    subprocess.run(["make", "docs"], cwd=ROOT, check=True, timeout=600)
    page = (ROOT / "build" / "site" / "reference" / "client.html").read_text()
    for name, module in site.CLIENT.items():
        assert f'id="lightning_instrumentation.{module}.{name}"' in page
        assert f" lightning_instrumentation.{name}\n" in page
    page = (ROOT / "build" / "site" / "reference" / "configuration.html").read_text()
    settings = [
        f"{kind.__module__}.{kind.__name__}.{name}"
        for kind in _sections()
        for name in kind.__annotations__
        if name[0] != "_"
    ]
    assert len(settings) > 200
    assert [name for name in settings if f'id="{name}"' not in page] == []


def _sections() -> set[type[Section]]:
    """Return the classes of the configuration's sections; the whole file's is all of them together."""
    found = [pkgutil.resolve_name(one.name) for one in pkgutil.walk_packages(config.__path__, f"{config.__name__}.")]
    kinds = {kind for module in found for kind in vars(module).values() if isinstance(kind, type)}
    return {kind for kind in kinds if issubclass(kind, Section)} - {Section, config.Config}
