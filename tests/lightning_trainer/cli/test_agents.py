"""``lightning-trainer agents`` over real stores: with a writer beside it, without one, and in any terminal."""

import io
import json
import os
from pathlib import Path

import pytest
from lightning_instrumentation import semconv
from rich.console import Console
from typer.testing import CliRunner

from lightning_trainer.agents.console import show
from lightning_trainer.agents.report import AgentRow, AgentsReport
from lightning_trainer.cli.app import app
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span

CONFIG = '[[policy]]\nname = "math"\nagents = ["sol*"]\nmodel = "random:tiny"\n'


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["agents", *arguments], env={"COLUMNS": "80"}, catch_exceptions=False)
    return done.exit_code, done.output


@pytest.fixture
async def state_dir(tmp_path: Path, recorded) -> Path:
    async with SqliteStore(tmp_path / ".lightning" / "lightning.sqlite") as store:
        await store.append([*recorded("openinference"), *recorded("openinference", "ours")])
    (tmp_path / "lightning.toml").write_text(CONFIG)
    return tmp_path / ".lightning"


def test_the_table_has_who_claims_whom_and_fits_80_columns(state_dir):
    code, said = run("--config", str(state_dir.parent / "lightning.toml"))
    assert code == 0
    lines = said.splitlines()
    assert max(map(len, lines)) <= 80
    solver, nobody = lines[1], lines[2]
    assert solver.split()[:3] == ["solver", "math", "2"]
    assert solver.split()[-2:] == ["calculator", "langchain"]
    assert nobody.startswith("(no name)")
    assert nobody.split()[2] == "none"
    said = " ".join(said.split())
    assert "without an agent's name: only a policy with agents" in said
    assert "in other languages, set gen_ai.agent.name on the span or one above it (AI SDK: functionId)" in said


def test_json_has_everything(state_dir):
    code, said = run("--state-dir", str(state_dir), "--json")
    assert code == 0
    report = json.loads(said)
    solver = report["agents"][0]
    assert report["policies"] is None
    assert solver["agent"] == "solver"
    assert solver["fidelity"] == {"exact": 2, "verified": 0, "text_only": 0}
    assert (solver["tools"], solver["recognised_by"]) == (["calculator"], ["langchain"])


async def test_it_says_what_programs_could_not_capture(state_dir):
    said = {semconv.PROCESS_ID: "p", semconv.LOSSES: '{"spool-full": 1200, "newer": 1}'}
    span = Span("1" * 32, "1" * 16, None, semconv.LOSSES_SPAN, 0, 0, said, resource={"service.name": "support.py"})
    async with SqliteStore(state_dir / "lightning.sqlite") as store:
        await store.append([span])
    words = " ".join(run("--state-dir", str(state_dir))[1].split())
    assert "support.py (1 process) could not capture: 1,200 spans dropped" in words
    assert "1 newer" in words
    report = json.loads(run("--state-dir", str(state_dir), "--json")[1])
    assert report["programs"] == [
        {"program": "support.py", "processes": 1, "reasons": {"spool-full": 1200, "newer": 1}}
    ]
    assert [row["agent"] for row in report["agents"]] == ["solver", None]


# As langfuse 5.0.4 and mlflow-tracing 3.17.2 write them.
LANGFUSE = {
    "langfuse.observation.type": "generation",
    "langfuse.observation.model.name": "gpt-4o",
    "langfuse.observation.input": '[{"role": "user", "content": "hi"}]',
    "langfuse.observation.output": '{"role": "assistant", "content": "hello"}',
}
MLFLOW = {"mlflow.spanType": '"CHAT_MODEL"', "mlflow.llm.model": '"gpt-4o"', "mlflow.spanInputs": "{}"}


async def test_what_langfuse_and_mlflow_write_in_forms_of_their_own_is_counted_and_named(tmp_path):
    # Before: "no agent has made a call yet: nothing of a model call is in this store"
    spans = [
        Span("1" * 32, "1" * 16, None, "OpenAI-generation", 0, 1, LANGFUSE, scope="langfuse-sdk"),
        Span("1" * 32, "2" * 16, None, "Completions", 0, 1, MLFLOW, scope="mlflow.tracing.provider"),
        Span("1" * 32, "3" * 16, None, "chain", 0, 1, {"mlflow.spanType": '"CHAIN"'}, scope="mlflow.tracing.provider"),
        # With MLFLOW_ENABLE_OTEL_GENAI_SEMCONV=true, which is read.
        Span(
            *("2" * 32, "4" * 16, None, "chat gpt-4o", 0, 1),
            {"gen_ai.operation.name": "chat", "gen_ai.response.id": "r1", "gen_ai.response.finish_reasons": ("stop",)},
            scope="mlflow.tracing.provider",
        ),
    ]
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        await store.append(spans)
    report = json.loads(run("--state-dir", str(tmp_path), "--json")[1])
    assert report["unread"] == {"langfuse-sdk": 1, "mlflow.tracing.provider": 1}
    assert [row["calls"] for row in report["agents"]] == [1]
    words = " ".join(run("--state-dir", str(tmp_path))[1].split())
    assert "1 span of model calls by langfuse-sdk in a form of its own, which is not read" in words


async def test_it_reads_beside_a_daemon_that_has_the_store_open(state_dir, recorded):
    async with SqliteStore(state_dir / "lightning.sqlite") as store:
        before = run("--state-dir", str(state_dir), "--json")[1]
        await store.append(recorded("genai"))
        after = run("--state-dir", str(state_dir), "--json")[1]
    calls = [sum(row["calls"] for row in json.loads(said)["agents"]) for said in (before, after)]
    assert calls == [6, 12]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_store_that_may_only_be_read_is_read(state_dir):
    os.chmod(state_dir / "lightning.sqlite", 0o400)
    os.chmod(state_dir, 0o500)
    try:
        assert run("--state-dir", str(state_dir))[0] == 0
    finally:
        os.chmod(state_dir, 0o700)


async def test_an_empty_store_is_one_clear_sentence(tmp_path):
    async with SqliteStore(tmp_path / "lightning.sqlite"):
        pass
    code, said = run("--state-dir", str(tmp_path))
    assert (code, len(said.strip().splitlines())) == (0, 1)
    assert "no agent has made a call yet" in said


def test_no_store_is_one_clear_sentence_and_makes_none(lightning, tmp_path):
    done = lightning.run("agents", "--state-dir", str(tmp_path / "nowhere"), cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no store" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "nowhere").exists()


def test_a_file_that_is_no_store_is_one_clear_sentence(lightning, tmp_path):
    (tmp_path / "lightning.sqlite").write_text("hello" * 1000)
    done = lightning.run("agents", "--state-dir", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot be read: file is not a database" in " ".join(done.stderr.split())


@pytest.mark.parametrize("width", [60, 80, 100, 105, 110, 140])
def test_no_name_is_broken_at_any_usual_width(width):
    # Before, at 80: "billing_speciali" and "st_agent" in two lines
    row = AgentRow(
        agent="billing_specialist_agent",
        policy="support",
        served_by=[],
        calls=12,
        prompt_tokens=123_456,
        sampled_tokens=98_765,
        tools=["search_knowledge_base", "calculator"],
        recognised_by=["langchain", "decorator"],
        fidelity={"exact": 12, "verified": 0, "text_only": 0},
        not_captured=[],
    )
    text = io.StringIO()
    show(AgentsReport(policies=["support"], agents=[row], programs=[], unread={}), Console(file=text, width=width))
    said = text.getvalue()
    assert max(map(len, said.splitlines())) <= width
    for name in ("billing_specialist_agent", "support", "search_knowledge_base", "calculator", "langchain"):
        assert name in said
    assert ("claimed by:" in said) is (width < 105)  # one block an agent, where the table does not fit


@pytest.mark.parametrize("width", [30, 40, 80, 120])
def test_long_names_and_many_agents_fit(width):
    row = AgentRow(
        agent="a_rather_long_agent_name_[bold]_with_brackets",
        policy=None,
        served_by=[],
        calls=1_234_567,
        prompt_tokens=123_456_789_012,
        sampled_tokens=98_765_432,
        tools=[f"tool_number_{number}" for number in range(40)],
        recognised_by=["langchain", "decorator", "baggage"],
        fidelity={"exact": 1_200_000, "verified": 0, "text_only": 34_567},
        not_captured=["34,567 calls without token ids"],
    )
    text = io.StringIO()
    show(AgentsReport(policies=["math"], agents=[row, row], programs=[], unread={}), Console(file=text, width=width))
    assert max(map(len, text.getvalue().splitlines())) <= width
    assert "[bold]" in text.getvalue().replace("\n", "").replace(" ", "")
    assert "claimed" in text.getvalue()
