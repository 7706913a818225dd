"""Sends what ``GET /metrics`` returns to a collector, with the OpenTelemetry metrics API, SDK and OTLP exporter.

Names and labels are the same in both. Anything that is not measured now is not sent; a step's metrics are sent until
the next step has ended. Source: OpenTelemetry specification, Metrics API and OTLP/HTTP.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from prometheus_client.core import Metric

from lightning_trainer import __version__
from lightning_trainer.config.metrics import OtlpConfig
from lightning_trainer.dashboard.openmetrics import look
from lightning_trainer.dashboard.site import Site
from lightning_trainer.errors import LightningError

_log = logging.getLogger(__name__)

_GIVEN_UP_S = 10.0
"""Time after which a collector that does not answer is tried again with newer numbers."""


class OtlpMetrics:
    """Sends the metrics of one daemon; an unreachable collector costs a line in the log."""

    def __init__(self, site: Site, config: OtlpConfig) -> None:
        self._site = site
        self._config = config
        self._exporter = OTLPMetricExporter(endpoint=config.endpoint, timeout=_GIVEN_UP_S)
        # An infinite interval turns off the reader's own timer: it sends when we have read the metrics.
        reader = PeriodicExportingMetricReader(self._exporter, math.inf, 1000 * _GIVEN_UP_S)
        resource = Resource.create({"service.name": "lightning-trainer", "service.version": __version__})
        self._provider = MeterProvider([reader], resource, shutdown_on_exit=False)
        self._meter = self._provider.get_meter("lightning-trainer", __version__)
        self._now: dict[str, Metric] = {}

    async def run(self) -> None:
        """Send every ``every_s`` until cancelled."""
        try:
            while True:
                try:
                    await self.send()
                except LightningError as error:
                    _log.warning("no metrics are sent to %s now: %s", self._config.endpoint, error)
                await asyncio.sleep(self._config.every_s)
        finally:
            self._exporter.shutdown()  # ends an export that is under way; the reader has no thread of its own

    async def send(self) -> None:
        """Send the current metrics once.

        Raises:
            StoreError: the store cannot be read.
        """
        collector = await look(self._site)
        await asyncio.to_thread(self._send, list(collector.collect()))

    def _send(self, families: Sequence[Metric]) -> None:
        new = [one for one in families if one.name not in self._now and one.type == "gauge"]
        self._now |= dict.fromkeys(self._now, Metric("gone", "", "gauge")) | {one.name: one for one in families}
        for one in new:
            observed = [self._observed(one.name)]
            self._meter.create_observable_gauge(one.name, observed, description=one.documentation)
        self._provider.force_flush(1000 * int(_GIVEN_UP_S))

    def _observed(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(sample.value, dict(sample.labels)) for sample in self._now[name].samples]

        return observe
