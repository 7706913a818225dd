"""What dead processes left on disk is delivered, whatever one record of it is like."""

import asyncio
import base64
import json
import pwd
from collections.abc import Sequence

import pytest
from lightning_instrumentation.delivery.spool import Spool, endpoint_folder
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_trainer.daemon import spools
from lightning_trainer.daemon.spools import drain_spools
from lightning_trainer.errors import MalformedTelemetryError
from lightning_trainer.types import Span

ENDPOINT = "http://127.0.0.1:8321"


class Sink:
    """Fails on spans called poison, and once for no reason."""

    def __init__(self, poisoned: Exception) -> None:
        self.names: list[str] = []
        self.bugs = 1
        self.poisoned = poisoned

    async def append(self, spans: Sequence[Span]) -> int:
        if self.bugs:
            self.bugs -= 1
            raise ZeroDivisionError
        if any(span.name == "poison" for span in spans):
            raise self.poisoned
        self.names += [span.name for span in spans]
        return len(spans)


def body(name: str) -> bytes:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add(trace_id=b"t" * 16, span_id=b"s" * 8, name=name)
    span.start_time_unix_nano = span.end_time_unix_nano = 1
    return request.SerializeToString()


@pytest.fixture
def left_behind(tmp_path, monkeypatch):
    """The spool of a process that has died."""
    monkeypatch.setenv("LIGHTNING_SPOOL_DIR", str(tmp_path))
    monkeypatch.setattr(spools, "_LOOK_AGAIN_S", 0.01)
    monkeypatch.setattr(spools, "_BATCH", 4)
    with Spool.create(endpoint_folder(tmp_path, ENDPOINT)) as spool:
        for name in ("a", "b", "poison", "c"):
            spool.append(body(name))
        spool.append(b"\xff\xff not a request")
        spool.append(body("d"))
    return tmp_path


@pytest.mark.parametrize(
    "poisoned", [MalformedTelemetryError("span 'poison' cannot be written"), ZeroDivisionError("a bug")]
)
async def test_one_that_cannot_be_stored_and_a_bug_keep_nothing_else_back(left_behind, poisoned):
    sink = Sink(poisoned)
    draining = asyncio.create_task(drain_spools(ENDPOINT, sink))
    async with asyncio.timeout(20):
        while sorted(set(sink.names)) != ["a", "b", "c", "d"]:
            assert not draining.done()
            await asyncio.sleep(0.01)
        while list(left_behind.rglob("*.spans")):
            await asyncio.sleep(0.01)
    (aside,) = left_behind.rglob("*.rejected")
    kept = [base64.b64decode(json.loads(line)["request"]) for line in aside.read_text().splitlines()]
    assert sorted(kept) == sorted([body("poison"), b"\xff\xff not a request"])
    draining.cancel()


async def test_a_user_without_a_home_has_no_spools_which_is_said_once(monkeypatch, caplog):
    def unknown(_):
        raise KeyError("no such user")

    for variable in ("HOME", "XDG_STATE_HOME", "LIGHTNING_SPOOL_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    async with asyncio.timeout(20):
        await drain_spools(ENDPOINT, Sink(ZeroDivisionError()))
    (said,) = caplog.records
    assert said.exc_info is None
    assert "are not looked for: user" in said.message
    assert "LIGHTNING_SPOOL_DIR" in said.message
