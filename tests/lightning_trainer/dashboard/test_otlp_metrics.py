"""The metrics of ``GET /metrics`` arrive at a collector by OTLP, under the same names and labels."""

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_config
from lightning_trainer.config.metrics import OtlpConfig
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.dashboard import otlp_metrics
from lightning_trainer.dashboard.openmetrics import look
from lightning_trainer.dashboard.otlp_metrics import OtlpMetrics
from lightning_trainer.dashboard.site import Site
from lightning_trainer.store import SqliteStore

Points = dict[str, dict[tuple[tuple[str, str], ...], float]]


@pytest.fixture
def collector() -> Iterator[tuple[str, list[ExportMetricsServiceRequest]]]:
    """An address that takes OTLP metrics, and what came."""
    came: list[ExportMetricsServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            body = gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
            came.append(ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/metrics", came
        server.shutdown()
        thread.join()


def points(request: ExportMetricsServiceRequest) -> Points:
    found: Points = {}
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                kind = metric.WhichOneof("data")
                for point in getattr(metric, kind or "").data_points:
                    labels = tuple(sorted((one.key, one.value.string_value) for one in point.attributes))
                    value = point.as_double if point.WhichOneof("value") == "as_double" else float(point.as_int)
                    found.setdefault(metric.name, {})[labels] = value
    return found


async def test_names_labels_and_values_are_those_of_the_other_form(run, collector):
    endpoint, came = collector
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        site = Site(config, store, LiveCensus(store), "http://127.0.0.1:8321")
        sending = OtlpMetrics(site, OtlpConfig(endpoint=endpoint))
        await sending.send()
        wanted = {
            family.name: {tuple(sorted(sample.labels.items())): float(sample.value) for sample in family.samples}
            for family in (await look(site)).collect()
            if family.type == "gauge" and family.samples
        }
        assert points(came[-1]) == wanted
        assert wanted["lightning_spans_stored"][()] > 500
        assert wanted["lightning_reward_mean"].keys() == {(("policy", "support"),)}
        (attributes,) = [one.resource.attributes for one in came[-1].resource_metrics]
        assert {one.key: one.value.string_value for one in attributes}["service.name"] == "lightning-trainer"
        await sending.send()
        assert points(came[-1]) == wanted


async def test_the_daemon_sends_them_from_its_start_on(tmp_path, collector, monkeypatch):
    endpoint, came = collector
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    config = Config.model_validate(
        {
            "daemon": {"port": 0, "token": "none", "state_dir": str(tmp_path / "state")},
            "metrics": {"otlp": {"endpoint": endpoint}},
        }
    )
    stop = asyncio.Event()
    running = asyncio.create_task(Daemon(config).run(stop))
    async with asyncio.timeout(30):
        while not came and not running.done():
            await asyncio.sleep(0.02)
        stop.set()
        await running
    assert points(came[0])["lightning_rollouts"] == {(): 0.0}


async def test_a_collector_that_is_not_there_costs_nothing_else(run, monkeypatch):
    monkeypatch.setattr(otlp_metrics, "_GIVEN_UP_S", 1.0)
    config = load_config(run)
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        site = Site(config, store, LiveCensus(store), "http://127.0.0.1:8321")
        await OtlpMetrics(site, OtlpConfig(endpoint="http://127.0.0.1:9/v1/metrics")).send()
