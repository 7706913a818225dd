"""Overview: each policy's phase, served version, curves, pace, where the time goes, and what is wrong."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from lightning_trainer.config import PolicyConfig
from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.reading.history import PolicyPast, known_policies, read_past
from lightning_trainer.dashboard.rendering import both_widths
from lightning_trainer.dashboard.site import PolicyNow, Site
from lightning_trainer.metrics.history import select_history
from lightning_trainer.metrics.row import StepMetrics
from lightning_trainer.metrics.warnings import warnings_of
from lightning_trainer.report.curves import Curve, curve_chart, legend
from lightning_trainer.report.svg import Series, stacked_bars
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import rollouts as rollout_queries
from lightning_trainer.store.tables import totals
from lightning_trainer.versions.held_out import HeldOutScore

STAGES = ("rollout", "build", "advantages", "train", "publish")
_SHOWN = 60
"""Steps of the overview's charts."""
_RECENT = 6
_HALF = (540, 210)
"""Pixels of a chart that stands next to another."""


@dataclass(frozen=True, slots=True)
class Card:
    """One policy."""

    name: str
    config: PolicyConfig | None
    """None: the policy is in the store but not in the configuration."""
    now: PolicyNow | None
    past: PolicyPast
    warnings: Sequence[str]
    reward: float | None
    """Reward of the newest step; None if nothing scored it."""
    reward_change: float | None
    """Change since the last scored step before it."""
    held_out: tuple[int, HeldOutScore] | None
    tokens_a_second: float | None
    """Trained tokens divided by the time of the newest steps."""
    step_seconds: float | None
    """Mean over those of the newest steps that were measured; a step that was skipped is not."""
    chart: Markup
    time_chart: Markup
    time_shares: Sequence[tuple[str, float, float]]
    """Stage, seconds and share, over the shown steps."""


async def overview(site: Site, asked: Asked) -> dict[str, Any]:
    """Return a card for every policy, the store's counts, and the most recent rollouts."""
    if site.live is not None:
        await site.live.refresh_scores()
    configured = {policy.name: policy for policy in site.policies}
    unread = configured if site.live is None else {}
    now = {} if site.live is None else site.live.now()

    def read(connection: Connection) -> dict[str, Any]:
        names = [policy.name for policy in site.policies]
        names += [name for name in known_policies(connection) if name not in names]
        return {
            "pasts": {name: read_past(connection, name, _SHOWN, unread=unread.get(name)) for name in names},
            # If no daemon reports a policy's warnings, this page reads the history that they are computed from.
            "histories": {name: select_history(connection, name) for name in names if name not in now},
            "counts": totals.count(connection),
            "recent": rollout_queries.select_recent(connection, _RECENT),
        }

    found = await site.store.scan(read)
    pasts, histories, bounds = found.pop("pasts"), found.pop("histories"), site.config.metrics.warnings

    def warnings(name: str) -> list[str]:
        return list((now[name].warnings if name in now else warnings_of(histories[name], bounds)).values())

    cards = await asyncio.to_thread(
        lambda: [_card(name, configured.get(name), now.get(name), past, warnings(name)) for name, past in pasts.items()]
    )
    return {**found, "cards": cards, "live": site.live is not None, "url": site.url, "state_dir": str(site.state_dir)}


def _card(
    name: str, config: PolicyConfig | None, now: PolicyNow | None, past: PolicyPast, warnings: Sequence[str]
) -> Card:
    rows = past.rows
    rewards = [row.values.get("reward/mean") for row in rows]
    known = [reward for reward in rewards if reward is not None]
    newest = rewards[-1] if rewards else None
    seconds = [sum(row.values.get(f"seconds/{stage}", 0.0) for stage in STAGES) for row in _measured(rows[-5:])]
    trained = sum(row.values.get("tokens/trained", 0.0) for row in rows[-5:])
    return Card(
        name=name,
        config=config,
        now=now,
        past=past,
        warnings=[*warnings, *(() if now is None else now.problems[-3:])],
        reward=newest,
        reward_change=newest - known[-2] if newest is not None and len(known) > 1 else None,
        held_out=past.held_out[-1] if past.held_out else None,
        tokens_a_second=trained / sum(seconds) if sum(seconds) > 0 and trained else None,
        step_seconds=sum(seconds) / len(seconds) if seconds else None,
        chart=_curves(rows, past),
        time_chart=_times(rows),
        time_shares=_shares(rows),
    )


def _curves(rows: Sequence[StepMetrics], past: PolicyPast) -> Markup:
    steps = [row.step for row in rows]
    curves = [Curve("reward in training", steps, [row.values.get("reward/mean") for row in rows])] if steps else []
    held_out = [entry for entry in past.held_out if not steps or steps[0] - 1 <= entry[0] <= steps[-1]]
    if held_out:
        curves.append(Curve("held-out", [version for version, _ in held_out], [score.mean for _, score in held_out]))
    label = f"Mean reward over {len(steps)} steps" + (" and held-out score by version" if held_out else "")
    drawn = both_widths(lambda width, height: curve_chart(curves, width=width, height=height, label=label), _HALF)
    return Markup(legend([curve.name for curve in curves])) + drawn if drawn else drawn


def _measured(rows: Sequence[StepMetrics]) -> list[StepMetrics]:
    return [row for row in rows if any(f"seconds/{stage}" in row.values for stage in STAGES)]


def _times(rows: Sequence[StepMetrics]) -> Markup:
    measured = _measured(rows)
    if not measured:
        return Markup("")
    series = [
        Series(stage, f"stage-{stage}", [row.values.get(f"seconds/{stage}", 0.0) for row in measured])
        for stage in STAGES
        if any(f"seconds/{stage}" in row.values for row in measured)
    ]
    titles = [
        "\n".join(
            [f"step {row.step}"]
            + [f"{stage} {row.values[name]:.2f} s" for stage in STAGES if (name := f"seconds/{stage}") in row.values]
        )
        for row in measured
    ]
    draw = partial(stacked_bars, [row.step for row in measured], series, titles=titles, unit="s")
    return both_widths(
        lambda width, height: draw(width=width, height=height, label="Seconds of each step by stage"), _HALF
    )


def _shares(rows: Sequence[StepMetrics]) -> list[tuple[str, float, float]]:
    sums = {stage: sum(row.values.get(f"seconds/{stage}", 0.0) for row in rows) for stage in STAGES}
    whole = sum(sums.values())
    return [(stage, seconds, seconds / whole) for stage, seconds in sums.items() if seconds] if whole else []
