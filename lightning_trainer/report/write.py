"""Puts a report on disk: ``report.json`` and ``report.html``, each whole or not there."""

import os
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.report.page import render_page
from lightning_trainer.report.quickstart_report import QuickstartReport, to_json


@dataclass(frozen=True, slots=True)
class ReportFiles:
    json: Path
    html: Path


def write_report(report: QuickstartReport, folder: Path) -> ReportFiles:
    """Write both files into ``folder`` (made when absent) and return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ReportFiles(folder / "report.json", folder / "report.html")
    _replace(files.json, to_json(report))
    _replace(files.html, render_page(report).encode())
    return files


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
