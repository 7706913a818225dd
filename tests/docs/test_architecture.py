"""``docs/architecture.md`` names folders and tests that are there, and the layers that ``make check`` holds."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")


def test_the_folders_and_tests_that_it_names_are_there() -> None:
    tests = re.findall(r"tests/[\w/]+\.py", PAGE)
    assert len(tests) == 11
    folders = ["instrumentation/lightning_instrumentation/", "adapters/lightning_adapters/"]
    folders += re.findall(r"lightning_trainer/\w+/", PAGE)
    assert len(folders) > 8
    assert [name for name in (*tests, *folders) if not (ROOT / name).exists()] == []


def test_its_layers_are_those_that_are_checked() -> None:
    block = PAGE[PAGE.index("    cli\n") :].split("\n\n")[0]
    written = [re.findall(r"\w+", line) for line in block.splitlines()]
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    small = {"experts", "sampling", "token_ids", "bulk_objects"}
    checked = [[name for name in re.findall(r"\w+", layer) if name not in small] for layer in layers]
    assert written == checked
