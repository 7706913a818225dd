"""``benchmarks/frameworks`` keeps working, its verdicts can be bad ones, and the page shows what was tried."""

import ast
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import pack_logprobs, pack_token_ids
from opentelemetry.sdk.trace import TracerProvider

from lightning_trainer.types import Span, SpanStatus

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")


def part(name: str) -> Any:
    return import_module(f"benchmarks.frameworks.{name}")


def tried(*arguments: str) -> list[str]:
    """Run it and return the cells of the one row that it prints."""
    command = [sys.executable, "-m", "benchmarks.frameworks", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = [line for line in done.stdout.splitlines() if line.startswith("| ")]
    return [cell.strip() for cell in row.strip("|").split(" | ")][1:]


@pytest.mark.slow
def test_the_openai_client_is_complete_in_every_way() -> None:
    one, four = "complete (1 call)", "complete (4 calls)"
    assert tried("--only", "openai_client", "--here") == [one, four, one, one, one, four]


@pytest.mark.slow
def test_claude_codes_turn_with_a_tool_is_in_the_store() -> None:
    (claude_code,) = [framework for framework in part("known").KNOWN if framework.name == "claude_code"]
    if shutil.which("node") is None or claude_code.version is None:
        pytest.skip("@anthropic-ai/claude-code is not installed: `make frameworks` installs it, where there is npm")
    assert tried("--only", "claude_code")[-2:] == ["complete (2 calls)", "complete (8 calls)"]


MADE: dict[str, Any] = {
    "response_id": "chatcmpl-7",
    "rollout": "tool/zero lines",
    "prompt_ids": [1, 2],
    "response_ids": [3, 4],
    "logprobs": [-0.25, -0.5],
    "streamed": False,
}


def span(agent: str = "weatherman", logprobs: tuple[float, ...] = (-0.25, -0.5), ids: tuple[int, ...] = (3, 4)) -> Span:
    return Span(
        trace_id="a" * 32,
        span_id="b" * 16,
        parent_span_id=None,
        name="gateway chat",
        start_ns=1,
        end_ns=2,
        attributes={
            semconv.OPERATION: semconv.CHAT,
            semconv.RESPONSE_ID: "chatcmpl-7",
            semconv.AGENT_NAME: agent,
            semconv.CHOICES: 1,
            semconv.PROMPT_TOKEN_IDS: pack_token_ids([1, 2]),
            semconv.response_token_ids(0): pack_token_ids(ids),
            semconv.response_logprobs(0): pack_logprobs(logprobs),
            semconv.FINISH_REASONS: ("stop",),
            semconv.STREAM_COMPLETE: True,
        },
        status=SpanStatus.OK,
        scope=semconv.GATEWAY_SCOPE,
    )


@pytest.mark.parametrize(
    ("spans", "failed", "said"),
    [
        ([span()], {}, "complete (1 call)"),
        ([], {}, "**1 of 1 wrong**: not captured"),
        ([span(ids=(3, 5))], {}, "**1 of 1 wrong**: other token ids"),
        ([span(logprobs=(-0.25, -0.75))], {}, "**1 of 1 wrong**: other log-probabilities"),
        ([span(agent="someone")], {}, "**1 of 1 wrong**: agent 'someone' instead of 'weatherman'"),
        ([span()], {"zero lines": "KeyError: 'city'"}, "**1 of 1 wrong**: the program failed: KeyError: 'city'"),
    ],
)
def test_what_is_wrong_is_said(spans: list[Span], failed: dict[str, str], said: str) -> None:
    cells = part("verdict").cells_of("tool", [MADE], spans, failed)
    assert str(cells["zero lines"]) == said
    assert cells["zero lines"].complete is said.startswith("complete")
    assert not cells["decorator"].complete, "a cell without a call is not complete"


def test_rows_that_were_not_tried_again_stay(tmp_path: Path) -> None:
    table, page, (first, second, *_) = part("table"), tmp_path / "page.md", part("known").KNOWN
    page.write_text(f"before\n{table.FRAMEWORKS}\n{table.END}\n{table.BESIDE}\n{table.END}\nafter\n")
    for framework, cell in ((second, "a"), (first, "b")):
        table.write(page, [part("trying").Tried(framework, dict.fromkeys(part("ways").COLUMNS, cell))])
    lines = page.read_text().splitlines()
    assert [(line.split(" | ")[0], line[-5:]) for line in lines if line.endswith((" a |", " b |"))] == [
        (f"| {first.title} {first.version or ''}".rstrip(), "| b |"),
        (f"| {second.title} {second.version or ''}".rstrip(), "| a |"),
    ]
    assert (lines[0], lines[-1]) == ("before", "after")


def exported(**changes: Any) -> list[bytes]:
    """What an exporter sends of a call below a span of the program's own, with other ids each time."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request, ids = ExportTraceServiceRequest(), [os.urandom(8) for _ in range(2)]
    scope = request.resource_spans.add().scope_spans.add()
    root = scope.spans.add(trace_id=b"t" * 16, span_id=ids[0], name="ask", start_time_unix_nano=time.time_ns())
    said = {"name": "ChatCompletion", "parent_span_id": root.span_id, "kind": 3, **changes}
    model = said.pop("model", "m")
    call = scope.spans.add(trace_id=b"t" * 16, span_id=ids[1], **said)
    for key, value in {"model": model, "response.id": f"chatcmpl-{time.time_ns()}", "id": os.urandom(16).hex()}.items():
        call.attributes.add(key=key).value.string_value = value
    return [request.SerializeToString()]


def test_spans_of_others_that_differ_in_ids_and_times_alone_are_unchanged() -> None:
    theirs = part("theirs")
    assert theirs.changes(theirs.told(exported()), theirs.told(exported())) == []
    assert theirs.changes(theirs.told(exported()), theirs.told(exported(model="policy"), answered_by="policy")) == []
    assert sum(theirs.told(exported()).values()) == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "Chat"}, "name was 'ChatCompletion', is 'Chat'"),
        ({"kind": 1}, "kind was '3', is '1'"),
        ({"parent_span_id": b""}, "above was 'ask', is ''"),
        ({"parent_span_id": b"elsewhere"}, "above was 'ask', is '(not sent)'"),
        ({"model": "other"}, "attribute model was 'm', is 'other'"),
    ],
)
def test_a_changed_span_of_others_is_said(changes: dict[str, Any], said: str) -> None:
    theirs = part("theirs")
    assert theirs.changes(theirs.told(exported()), theirs.told(exported(**changes))) == [f"ChatCompletion: {said}"]


def test_a_span_of_others_that_is_missing_or_one_more_is_said() -> None:
    theirs = part("theirs")
    one, two = theirs.told(exported()), theirs.told(exported() + exported())
    assert theirs.changes(one, two) == ["ask is one more", "ChatCompletion is one more"]
    assert theirs.changes(two, one) == ["ask is missing", "ChatCompletion is missing"]


@pytest.mark.parametrize(
    ("change", "whole"),
    [
        ({}, True),
        ({"changes": {"run": ["a span was"]}}, False),
        ({"counted": 5}, False),
        ({"alone": {"run": {}}}, False),
    ],
)
def test_another_instrumentation_that_is_disturbed_fails_the_command(change: dict[str, Any], whole: bool) -> None:
    row = {"alone": {"run": Counter({(): 1})}, "changes": {"run": []}, "made": 6, "counted": 6}
    seen = part("beside").Beside(**{**row, **change})
    tried = part("trying").Tried(part("known").KNOWN[0], {"zero lines": "not captured: said"}, seen)
    assert tried.whole is whole
    assert any("**" in cell for cell in seen.cells().values()) is not whole


def test_a_cell_of_which_nothing_was_said_fails_the_command() -> None:
    tried, framework = part("trying").Tried, part("known").KNOWN[0]
    assert not tried(framework, {"zero lines": "**silent**: not captured, and nothing says so"}).whole


def test_the_page_has_a_row_for_every_framework() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "complete" in line]
    assert [
        framework.title for framework in part("known").KNOWN if not any(framework.title in row for row in rows)
    ] == []


BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def test_what_the_page_says_of_other_instrumentations_was_tried() -> None:
    """Every import and call in its Python blocks is one of the programs'."""
    made = set()
    for program in (ROOT / "benchmarks" / "frameworks" / "programs").rglob("*.py"):
        made |= calls(program.read_text(encoding="utf-8"))
    others = [block for block in BLOCKS if "OTLPSpanExporter" not in block]
    assert len(others) == 6
    for block in others:
        assert calls(block) <= made, block


def test_what_sends_their_spans_here_as_well_says_the_token_to_the_daemon_alone(monkeypatch) -> None:
    exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    (block,) = [block for block in BLOCKS if "OTLPSpanExporter" in block]
    monkeypatch.setenv("LIGHTNING_TOKEN", "the-token")
    got: list[tuple[str, str | None, bytes]] = []

    class Daemon(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["authorization"], body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Daemon) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        said: dict[str, Any] = {}
        exec(block.replace("http://127.0.0.1:8321", f"http://127.0.0.1:{server.server_port}"), said)
        provider = TracerProvider()
        provider.add_span_processor(said["to_daemon"])
        provider.get_tracer("t").start_span("theirs").end()
        assert provider.force_flush()
        provider.shutdown()
        server.shutdown()
    ((path, authorization, body),) = got
    assert (path, authorization) == ("/v1/traces", "Bearer the-token")
    assert b"theirs" in body
    assert exporters.__name__ in block


def calls(text: str) -> set[str]:
    """What a program imports and calls."""
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    return imported | {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
