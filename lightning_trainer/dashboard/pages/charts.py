"""Metrics: a chart for every metric that was measured, policies and runs overlaid, steps chosen."""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.reading.progress import SHOWN_STEPS, known_policies
from lightning_trainer.dashboard.rendering import both_widths
from lightning_trainer.dashboard.site import Site
from lightning_trainer.metrics.catalog import ABOUT, GROUPS, describe, group_of
from lightning_trainer.metrics.history import select_rows
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.report.curves import Curve, curve_chart, legend

_MOST_STEPS = 2_000
_ORDER = {name: place for place, name in enumerate(ABOUT)}


async def charts(site: Site, asked: Asked) -> dict[str, Any]:
    first, last, wanted = asked.number("first"), asked.number("last"), asked.text("policy")

    def read(connection: sqlite3.Connection) -> dict[str, list[StepMetrics]]:
        names = known_policies(connection)
        shown = [name for name in names if wanted in (None, name)]
        if first is None and last is None:
            return {name: select_rows(connection, name, newest=SHOWN_STEPS) for name in shown}
        after = 0 if first is None else max(0, first - 1)
        count = _MOST_STEPS if last is None else max(0, min(_MOST_STEPS, last - after))
        return {name: select_rows(connection, name, after=after, oldest=count) for name in shown}

    rows = {name: found for name, found in (await site.store.scan(read)).items() if found}
    if last is not None:
        rows = {name: [row for row in found if row.step <= last] for name, found in rows.items()}
    names = sorted({metric for found in rows.values() for row in found for metric in row.values}, key=_place)
    groups: dict[str, list[dict[str, Any]]] = {title: [] for title in GROUPS}
    for name in names:
        groups.setdefault(group_of(name), []).append(_chart(name, rows))
    steps = [row.step for found in rows.values() for row in found]
    return {
        "groups": {title: found for title, found in groups.items() if found},
        "legend": legend(list(rows)),
        "policies": list(rows),
        "policy": wanted,
        "all_policies": [policy.name for policy in site.policies],
        "first": first,
        "last": last,
        "from_step": min(steps, default=None),
        "to_step": max(steps, default=None),
        "all_steps": asked.link("/charts", first=None, last=None),
    }


def _place(name: str) -> tuple[int, str]:
    """Ours in the catalog's order, which begins with what people look at first; then the others by name."""
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
        "svg": both_widths(lambda width, _: curve_chart(curves, width=width, height=170, label=name), (360, 170)),
    }
