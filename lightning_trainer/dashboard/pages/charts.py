"""Metrics: a chart for every metric that was measured, policies and runs overlaid, steps chosen."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.reading.history import known_policies, read_other_runs, run_names, spread_rows
from lightning_trainer.dashboard.site import Site
from lightning_trainer.metrics.catalog import ABOUT, GROUPS, describe, group_of
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.report.curves import Curve, curve_chart, legend
from lightning_trainer.store.connection import Connection

_ORDER = {name: place for place, name in enumerate(ABOUT)}


async def charts(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the curves of all metrics, for the policies and steps that were asked for, and for other runs."""
    first, last, wanted = asked.number("first"), asked.number("last"), asked.text("policy")

    def read(connection: Connection) -> dict[str, tuple[list[StepMetrics], int]]:
        names = known_policies(connection)
        return {name: spread_rows(connection, name, first, last) for name in names if wanted in (None, name)}

    found = {name: one for name, one in (await site.store.scan(read)).items() if one[0]}
    others, problems = await read_other_runs(site.config.metrics.beside, wanted, first, last)
    found |= {name: one for name, one in others.items() if one[0]}
    rows = {name: shown for name, (shown, _) in found.items()}
    steps = [row.step for shown in rows.values() for row in shown]
    return {
        "groups": await asyncio.to_thread(_groups, rows),
        "legend": legend(list(rows)),
        "thinned": max((held for shown, held in found.values() if held > len(shown)), default=0),
        "policy": wanted,
        "others": run_names(site.config.metrics.beside),
        "problems": problems,
        "all_policies": [policy.name for policy in site.policies],
        "first": first,
        "last": last,
        "from_step": min(steps, default=None),
        "to_step": max(steps, default=None),
        "all_steps": asked.link("/charts", first=None, last=None),
    }


def _groups(rows: Mapping[str, Sequence[StepMetrics]]) -> dict[str, list[dict[str, Any]]]:
    names = sorted({metric for shown in rows.values() for row in shown for metric in row.values}, key=_place)
    groups: dict[str, list[dict[str, Any]]] = {title: [] for title in GROUPS}
    for name in names:
        groups.setdefault(group_of(name), []).append(_chart(name, rows))
    return {title: charts for title, charts in groups.items() if charts}


def _place(name: str) -> tuple[int, str]:
    """Return a sort key: our metrics in the catalog's order, the most looked at first; then the others by name."""
    return (_ORDER.get(name, len(_ORDER)), name)


def _chart(name: str, rows: Mapping[str, Sequence[StepMetrics]]) -> dict[str, Any]:
    curves = [
        Curve(policy, [row.step for row in found], [row.values.get(name) for row in found])
        for policy, found in rows.items()
    ]
    newest = {policy: found[-1].values.get(name) for policy, found in rows.items()}
    return {
        "name": name,
        "about": describe(name),
        "newest": [value for value in newest.values() if value is not None],
        "svg": Markup(curve_chart(curves, width=360, height=170, label=name)),
    }
