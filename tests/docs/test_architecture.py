"""``docs/architecture.md`` names folders and tests that are there, and the layers that ``make check`` holds."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


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
    layers = next(contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
    small = {"experts", "sampling", "token_ids", "bulk_objects"}
    checked = [[name for name in re.findall(r"\w+", layer) if name not in small] for layer in layers]
    assert written == checked


def test_verl_ray_and_vllm_are_forbidden_everywhere_but_where_it_says() -> None:
    paragraph = PAGE[PAGE.index("The client and the adapters") :].split("\n\n")[0]
    everything = ["lightning_trainer", "lightning_instrumentation", "lightning_adapters"]
    for names in (["verl", "ray"], ["vllm"]):
        (contract,) = (
            one for one in CONTRACTS if one.get("forbidden_modules") == names and one["source_modules"] == everything
        )
        for ignored in contract["ignore_imports"]:
            importer = ignored.split(" -> ")[0].removeprefix("lightning_trainer.").rstrip(".*")
            assert f"`{importer}`" in paragraph or importer.startswith("training"), ignored
