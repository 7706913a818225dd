"""``report.html``: the sections of a report, in order. Every value from the run is escaped."""

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from lightning_trainer.report.markup import document, duration

from .evidence import examples_section, ledger_section, settings_section, versions_section
from .outcome import held_out_section, reward_section, sharing_section, time_section
from .report import QuickstartReport, to_json


def render_page(report: QuickstartReport) -> str:
    """Return the whole page."""
    sections = [
        _header(report),
        held_out_section(report.held_out),
        reward_section(report.steps),
        time_section(report.steps),
        sharing_section(report.steps),
        examples_section(report),
        ledger_section(report),
        versions_section(report),
        settings_section(report),
    ]
    title = f"{report.policy} · seed {report.seed} · lightning-trainer"
    return document(title, filter(None, sections))


def _header(report: QuickstartReport) -> str:
    machine = report.machine
    ready = f", {duration(report.ready_s)} until ready" if report.ready_s is not None else ""
    facts = [
        report.model,
        f"seed {report.seed}",
        f"{datetime.fromtimestamp(report.started, UTC):%Y-%m-%d %H:%M} UTC",
        f"{duration(report.ended - report.started)} in all{ready}",
        f"{machine.cores} cores, {machine.memory_bytes / 2**30:.0f} GiB, {machine.cpu_model}",
    ]
    lines = "".join(f"<li>{escape(fact)}</li>" for fact in facts)
    return (
        f'<header><p class="brand">lightning-trainer</p><h1>The {escape(report.policy)} agent, before and after '
        f'training</h1><ul class="facts">{lines}</ul></header>'
    )


# Writing a report to disk: ``report.json`` and ``report.html``, each complete or absent.


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """The paths of a written report."""

    json: Path
    html: Path


def write_report(report: QuickstartReport, folder: Path) -> ReportFiles:
    """Write both files into ``folder`` (created if absent) and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    files = ReportFiles(folder / "report.json", folder / "report.html")
    _replace(files.json, to_json(report))
    _replace(files.html, render_page(report).encode())
    return files


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)
