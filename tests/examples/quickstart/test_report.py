"""report.json: what goes in comes out, and nothing else is taken for a report."""

import json
import math
from dataclasses import replace

import pytest

from examples.calculator.quickstart.page import write_report
from examples.calculator.quickstart.report import FamilyResult, HeldOutResult, ReportError, read_report


def test_a_report_survives_the_disk(report, tmp_path):
    files = write_report(report, tmp_path / "run")
    assert read_report(files.json) == report
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["report.html", "report.json"]


def test_what_is_not_a_number_is_null(report, tmp_path):
    first = replace(report.steps[0], metrics={"actor/grad_norm": math.nan})
    files = write_report(replace(report, steps=(first,)), tmp_path)
    assert json.loads(files.json.read_text())["steps"][0]["metrics"] == {"actor/grad_norm": None}


def test_outcomes_are_counted_by_family():
    result = HeldOutResult.of([True, False, True], ["a", "b", "a"])
    assert (result.n, result.successes, result.share) == (3, 2, pytest.approx(2 / 3))
    assert result.by_family == {"a": FamilyResult(2, 2), "b": FamilyResult(1, 0)}


def test_the_ledger_balances_only_with_the_engines_count(report):
    assert report.ledger_balances is True
    assert replace(report, sampled_tokens=301).ledger_balances is False
    assert replace(report, sampled_tokens=None).ledger_balances is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "seed"),
        ("not json", "not a report"),
        (None, "cannot read"),
    ],
)
def test_other_files_are_refused_in_one_sentence(tmp_path, content, said):
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ReportError, match=said):
        read_report(path)


def test_unknown_fields_and_formats_are_refused(report, tmp_path):
    path = write_report(report, tmp_path).json
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "surprise": 1}))
    with pytest.raises(ReportError, match="surprise"):
        read_report(path)
    path.write_text(json.dumps({**document, "format": 99}))
    with pytest.raises(ReportError, match="format 99"):
        read_report(path)
