"""``benchmarks/frameworks.py`` keeps working, its verdicts can be bad ones, and the page shows what was tried."""

import ast
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from lightning_instrumentation import semconv
from lightning_instrumentation.telemetry.packing import pack_logprobs, pack_token_ids

from lightning_trainer.types import Span, SpanStatus

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frameworks.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")


def part(name: str) -> Any:
    return import_module(f"frameworks_parts.{name}")


def tried(*arguments: str) -> list[str]:
    """Run it and return the cells of the one row that it prints."""
    command = [sys.executable, "benchmarks/frameworks.py", *arguments]
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
        ([span(agent="somebody")], {}, "**1 of 1 wrong**: agent 'somebody' instead of 'weatherman'"),
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
    page.write_text(f"before\n{table.BEGIN}\n{table.END}\nafter\n")
    table.write(page, {second.name: f"| {second.title} 1 | a |"})
    table.write(page, {first.name: f"| {first.title} 1 | b |"})
    lines = page.read_text().splitlines()
    assert [line for line in lines if line.endswith((" a |", " b |"))] == [
        f"| {first.title} 1 | b |",
        f"| {second.title} 1 | a |",
    ]
    assert (lines[0], lines[-1]) == ("before", "after")


def test_the_page_has_a_row_for_every_framework() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "complete" in line]
    assert [
        framework.title for framework in part("known").KNOWN if not any(framework.title in row for row in rows)
    ] == []


def test_what_the_page_says_of_other_instrumentations_was_tried() -> None:
    """Every import and call in its Python blocks is one of the programs'."""
    made = set()
    for program in (ROOT / "benchmarks" / "frameworks_parts" / "programs").glob("*.py"):
        made |= calls(program.read_text(encoding="utf-8"))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for block in blocks:
        assert calls(block) <= made, block


def calls(text: str) -> set[str]:
    """What a program imports and calls."""
    tree = ast.parse(text)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    imported = {f"{node.module}.{alias.name}" for node in imports for alias in node.names}
    return imported | {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
