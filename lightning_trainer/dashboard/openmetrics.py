"""``GET /metrics``: the metrics that ``docs/operations.md`` lists, as OpenMetrics, written by ``prometheus_client``.

A step's metric is a gauge with the newest step's value: ``reward/mean`` is ``lightning_reward_mean{policy="..."}``.
A number that was not measured is absent, never zero. Source: OpenMetrics 1.0
(https://prometheus.io/docs/specs/om/open_metrics_spec).
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from lightning_trainer import __version__
from lightning_trainer.dashboard.reading.history import PolicyPast, known_policies, read_past
from lightning_trainer.dashboard.site import Live, Site
from lightning_trainer.metrics.catalog import describe
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import totals
from lightning_trainer.store.tables.totals import StoreCounts

CONTENT_TYPE = CONTENT_TYPE_LATEST
_PREFIX = "lightning_"
_PHASES = (
    *("starting", "collecting", "building", "training", "publishing", "recovering", "waiting", "paused", "held"),
    *("following", "finished", "serving"),
)


def metric_name(name: str) -> tuple[str, dict[str, str]]:
    """Return a metric's OpenMetrics name, and its labels besides the policy, such as a ledger's reason.

    A name that a user chose becomes a label's value: in the metric's own name, two that differ only in punctuation
    would become one.
    """
    labels: dict[str, str] = {}
    parts = name.split("/")
    if parts[0] == "ledger":
        labels = {"outcome": parts[1], "reason": "/".join(parts[2:]) or "all"}
        return f"{_PREFIX}ledger_tokens", labels
    if parts[0] in ("seconds", "tokens"):
        return f"{_PREFIX}step_{parts[0]}", {"stage" if parts[0] == "seconds" else "kind": "_".join(parts[1:])}
    if parts[0] == "judge":
        name, labels = f"judge/{parts[-1]}", {"judge": "/".join(parts[1:-1])}
    return _PREFIX + re.sub(r"[^a-zA-Z0-9_]", "_", name), labels


class _Now(Collector):
    """Metrics of a store and a daemon at one moment."""

    def __init__(self, counts: StoreCounts, pasts: Mapping[str, PolicyPast], live: Live | None) -> None:
        self._counts = counts
        self._pasts = pasts
        self._now = {} if live is None else live.now()
        self._writable = [] if live is None else [({}, live.write_failure is None)]

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("lightning_trainer", "The daemon that says this.", {"version": __version__})
        yield _gauge("lightning_spans_stored", "Spans that the store holds.", [({}, self._counts["spans"])])
        yield _gauge("lightning_rollouts", "Rollouts that the store knows.", [({}, self._counts["rollouts"])])
        states = [({"state": state}, count) for state, count in self._counts["attempts"].items()]
        yield _gauge("lightning_attempts", "Attempts by state.", states)
        steps = [({"state": state}, count) for state, count in self._counts["steps"].items()]
        yield _gauge("lightning_steps", "Steps by state.", steps)
        yield _gauge("lightning_store_writable", "1 while calls and spans are recorded.", self._writable)
        yield from self._policies()
        yield from self._newest_steps()

    def _policies(self) -> Iterator[Metric]:
        live = {name: past.live.version for name, past in self._pasts.items() if past.live is not None}
        # A daemon that follows may lag behind the version that another daemon has made live.
        served = {name: now.served for name, now in self._now.items() if name in live and now.served is not None}
        yield _gauge("lightning_live_version", "The version that is served.", _by_policy({**live, **served}))
        scores = {name: past.held_out[-1][1].mean for name, past in self._pasts.items() if past.held_out}
        yield _gauge("lightning_held_out_score", "Held-out score of the newest version with one.", _by_policy(scores))
        done = {name: now.steps_done for name, now in self._now.items()}
        yield _gauge("lightning_steps_done", "Steps that have ended.", _by_policy(done))
        waiting = {name: now.ready_groups for name, now in self._now.items()}
        yield _gauge("lightning_groups_ready", "Whole groups that wait for a step.", _by_policy(waiting))
        phases = [
            ({"policy": name, "phase": phase}, float(now.phase == phase))
            for name, now in self._now.items()
            for phase in _PHASES
        ]
        yield _gauge("lightning_phase", "1 for what the policy's loop does now.", phases)
        up = {name: float(now.engine == "ready") for name, now in self._now.items()}
        yield _gauge("lightning_engine_up", "1 while the policy's engine answers.", _by_policy(up))
        held = [({"policy": name, "rule": rule}, 1.0) for name, now in self._now.items() for rule in now.warnings]
        yield _gauge("lightning_warning", "1 while a warning of docs/operations.md holds.", held)

    def _newest_steps(self) -> Iterator[Metric]:
        newest = {name: past.rows[-1] for name, past in self._pasts.items() if past.rows}
        yield _gauge("lightning_step", "The newest step.", _by_policy({name: row.step for name, row in newest.items()}))
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        about: dict[str, str] = {}
        for policy, row in newest.items():
            for name, value in row.values.items():
                family, labels = metric_name(name)
                found.setdefault(family, []).append(({"policy": policy, **labels}, value))
                about.setdefault(family, describe(name) or f"{name} of the newest step")
        shared = {
            "lightning_ledger_tokens": "Sampled tokens of the newest step by outcome and reason.",
            "lightning_step_seconds": "Seconds of the newest step by stage.",
            "lightning_step_tokens": "Tokens of the newest step.",
        }
        for family, values in found.items():
            yield _gauge(family, shared.get(family, f"{about[family]}, of the newest step"), values)


async def look(site: Site) -> Collector:
    """Return every metric as it is now.

    Raises:
        StoreError: the store cannot be read.
    """
    if site.live is not None:
        await site.live.refresh_scores()

    def read(connection: Connection) -> tuple[StoreCounts, dict[str, PolicyPast]]:
        return totals.count(connection), {name: read_past(connection, name, 1) for name in known_policies(connection)}

    counts, pasts = await site.store.scan(read)
    return _Now(counts, pasts, site.live)


async def openmetrics(site: Site) -> bytes:
    """Return the metrics as OpenMetrics text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(await look(site))
    return generate_latest(registry)


def _by_policy(values: Mapping[str, float]) -> list[tuple[dict[str, str], float]]:
    return [({"policy": name}, value) for name, value in values.items()]


def _gauge(name: str, about: str, values: Iterable[tuple[dict[str, str], Any]]) -> Metric:
    family = GaugeMetricFamily(name, about)
    for labels, value in values:
        family.add_sample(name, labels, float(value))
    return family
