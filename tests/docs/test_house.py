"""How the house is built, held in numbers: sizes of files and folders, and names that were settled."""

import ast
import re
import statistics
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[2]
PACKAGES = ("lightning_trainer", "instrumentation/lightning_instrumentation", "adapters/lightning_adapters")
ONE_OF_A_KIND = (
    "adapters/lightning_adapters/",
    "instrumentation/lightning_instrumentation/hooks/",
    "lightning_trainer/config/",
    "lightning_trainer/samples/credit/schemes/",
    "lightning_trainer/dashboard/pages/",
    "lightning_trainer/explain/diagnoses/",
    "lightning_trainer/ingest/dialects/",
    "lightning_trainer/serving/host/patches/",
    "lightning_trainer/store/tables/",
)
"""Folders of one adapter, hook, section, scheme, page, diagnosis, dialect, patch or table a file."""
SHORT = {
    "instrumentation/lightning_instrumentation/errors.py",  # the client's errors, for its users to import
    "instrumentation/lightning_instrumentation/redaction/emails.py",  # one rule
    "instrumentation/lightning_instrumentation/wire/native/fields.py",  # of four providers
    "instrumentation/lightning_instrumentation/zero_code/instrumentor.py",  # an entry point of OpenTelemetry
    "lightning_trainer/__main__.py",
    "lightning_trainer/bulk_objects.py",  # of two layers: ingest and training
    "lightning_trainer/dataset/atomic.py",  # below every format
    "lightning_trainer/environments/errors.py",  # errors, below every environment
    "lightning_trainer/environments/limits.py",  # for users to import; a test keeps it equal to [environments]
    "lightning_trainer/environments/loading.py",  # also for the interpreters of third-party environments
    "lightning_trainer/explain/finding.py",  # below every diagnosis
    "lightning_trainer/gateway/errors.py",  # below the whole gateway
    "lightning_trainer/judges/registry.py",  # above every kind
    "lightning_trainer/serving/host/plugin.py",  # an entry point of vLLM
    "lightning_trainer/store/records.py",  # what every table gives
    "lightning_trainer/training/on_ray/environ.py",  # imported before Ray
}
SETTLED = (
    r"[Dd]oor|Tries|Settlement|Passage|Lifeline|Gate|Crew|Fate|CallFate|fates|lonely|casts|speaker|speaking|goes_home"
    r"|STRANGER|CutAnswer|cut_out|do_later|NotifyingSink|Shown|build_shown|read_shown|\w*behaviour\w*|BEHAVIOUR"
    r"|\w*(token|normal|serial|recogn|summar|initial|organ|general|optim)is(e|es|ed|ing|ation)\w*|\w*colour\w*|centred?"
)
"""Names that gave way to the field's, and British spelling, as whole identifiers."""
SPELLED_ON_DISK = {"recognised_by"}


def _modules() -> dict[str, str]:
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in found}


def test_files_are_as_large_as_a_thought() -> None:
    lengths = {name: text.count("\n") for name, text in _modules().items() if not name.endswith("__init__.py")}
    assert {name: length for name, length in lengths.items() if length >= 400} == {}
    assert 90 <= statistics.median(lengths.values()) <= 200
    short = {name for name, length in lengths.items() if length < 40 and not name.startswith(ONE_OF_A_KIND)}
    assert short - SHORT == set()


def test_exceptions_are_of_what_is_there() -> None:
    assert [name for name in (*ONE_OF_A_KIND, *SHORT) if not (ROOT / name).exists()] == []


def test_no_folder_has_more_files_than_one_looks_through() -> None:
    folders = Counter(
        path.parent.relative_to(ROOT)
        for package in (*PACKAGES, "benchmarks", "tests")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.name not in ("__init__.py", "py.typed")
    )
    assert {str(folder): files for folder, files in folders.items() if files > 15} == {}


def test_no_modules_import_each_other_in_a_circle() -> None:
    names = [Path(package).name for package in PACKAGES]
    graph = grimp.build_graph(*names, cache_dir=None)  # imports for types alone count as well
    TopologicalSorter({module: graph.find_modules_directly_imported_by(module) for module in graph.modules}).prepare()


def test_a_benchmark_imports_its_own_package_and_what_all_share() -> None:
    for path in (ROOT / "benchmarks").rglob("*.py"):
        own = path.relative_to(ROOT).parts[1]
        imported = re.findall(r"^\s*(?:from|import) benchmarks\.(\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(imported) <= {own, "common"}, path


def test_names_that_were_settled_do_not_come_back() -> None:
    settled = re.compile(SETTLED)
    found = set()
    for name, text in _modules().items():
        for node in ast.walk(ast.parse(text)):
            own = {getattr(node, kind, None) for kind in ("id", "name", "arg", "attr")}
            found |= {(name, one) for one in own if isinstance(one, str) and settled.fullmatch(one)}
    assert {(name, one) for name, one in found if one not in SPELLED_ON_DISK} == set()
