"""What docs/testing.md says of marks is what ``--fast`` does."""

import ast
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
MARK = re.compile(r"\bmark\.(\w+)")


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> ModuleType:
    """``tests/conftest.py``, which has the option."""
    plugin = request.config.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    assert isinstance(plugin, ModuleType)
    return plugin


def test_every_mark_is_on_the_page_and_left_out_by_fast(shared) -> None:
    markers = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    names = {one.partition(":")[0] for one in markers["markers"]}
    told = PAGE.partition("\n## Marks")[2].partition("`make test` runs")[0]
    assert names == shared._HEAVY
    assert names <= set(re.findall(r"`(\w+)`", told))


@pytest.mark.parametrize(
    "written", ["pytest.mark.{}", "[pytest.mark.asyncio, pytest.mark.{}]", "[\n    pytest.mark.{},\n]"]
)
def test_a_file_with_any_of_the_marks_is_not_imported_by_fast(shared, written) -> None:
    # Before: those of `long`, and of a list over several lines, were.
    assert [
        mark for mark in shared._HEAVY if not shared._HEAVY_FILE.search(f"x = 1\npytestmark = {written.format(mark)}\n")
    ] == []
    assert not shared._HEAVY_FILE.search(f"pytestmark = {written.format('skipif')}\n@pytest.mark.long\n")


def test_fast_leaves_out_whole_files_by_their_own_marks_alone(shared) -> None:
    wrong = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        said = [ast.unparse(one) for one in ast.parse(text).body if isinstance(one, ast.Assign)]
        marks = {mark for one in said if one.startswith("pytestmark = ") for mark in MARK.findall(one)}
        if bool(marks & shared._HEAVY) is not bool(shared._HEAVY_FILE.search(text)):
            wrong.append(str(path.relative_to(ROOT)))
    assert wrong == []
