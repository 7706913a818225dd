"""What the examples' frameworks produce: recorded, built into samples, decoded, checked against the engine's record.

The engine is the stub that speaks like vLLM; here it keeps every id that it sends, and the words to decode them with.
Everything else is what runs outside of tests: the programs, the client, the gateway, the receiver, the store, `build`.
"""

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner

from lightning_trainer.cli.app import app as command_line
from lightning_trainer.dataset.formats.parquet import read_ledger, read_samples_parquet
from lightning_trainer.dataset.sources import STORE_FILE, read_source
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.gateway.routes import gateway_router
from lightning_trainer.ingest.http.otlp import otlp_router
from lightning_trainer.retokenize.chat import chat_answer
from lightning_trainer.retokenize.texts import words_of
from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Outcome

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
POLICY, VERSION = "team", 3
PROGRAMS = {
    "langchain": ("examples/calculator/agent.py", "What is 2 + 3?"),
    "langgraph": ("examples/langgraph/agent.py", "lighthouses"),
    "autogen": ("examples/autogen/agent.py", "Describe a lighthouse in one sentence."),
    "openai agents": ("examples/openai_agents/agent.py", "How many words has this question?"),
    "openai": ("plain.py", "lighthouses"),
}
AGENTS = {
    "langchain": {"calculator"},
    "langgraph": {"planner", "researcher", "writer", "critic"},
    "autogen": {"writer", "critic"},
    "openai agents": {"triage", "counter"},
    "openai": {"plain"},
}
PLAIN = """
import sys, lightning_instrumentation as lt
from openai import OpenAI

@lt.agent("plain")
def speak(topic):
    client, messages = OpenAI(), [{"role": "user", "content": topic}]
    client.chat.completions.create(model="team", messages=messages, n=2)
    for _ in client.chat.completions.create(model="team", messages=[*messages, *messages], stream=True): pass

speak(sys.argv[1])
"""
ATTEMPTS = """
import runpy, sys, lightning_instrumentation as lt
lt.init()
_, program, question, *attempts = sys.argv
sys.argv = [program, question]
for attempt, reward in zip(attempts[::2], attempts[1::2]):
    with lt.rollout("task", group_id="group", rollout_id=attempt):
        runpy.run_path(program, run_name="__main__")
        lt.reward(float(reward))
assert lt.flush(20.0), lt.stats()
"""


class Answer(NamedTuple):
    """One choice, as the engine sent it."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


class Engine(sys.modules["lightning_test_stubs"].ModelServer):
    """Keeps what it sends."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Answer] = []
        self._words: list[str] = ["<begin>"]
        self._ids: dict[str, int] = {}
        self._numbers = itertools.count(1)
        self._writing = threading.Lock()
        stub: Any = self._handler

        class Handler(stub):
            def end_headers(self) -> None:
                self.send_header("x-lightning-policy", POLICY)
                self.send_header("x-lightning-policy-version", str(VERSION))
                super().end_headers()

        self._handler = Handler

    def ids(self, words: list[str]) -> list[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        with self._writing:
            for word in words:
                if word not in self._ids:
                    self._ids[word] = len(self._words)
                    self._words.append(word)
            return [self._ids[word] for word in words]

    def decoded(self, ids: tuple[int, ...]) -> str:
        return "".join(self._words[one] for one in ids)

    def completion(self, body: dict[str, Any], said: str) -> dict[str, Any]:
        answer = super().completion(body, said)
        answer["id"] = f"chatcmpl-{next(self._numbers)}"
        if not body.get("stream"):
            for choice in answer["choices"]:
                self._keep(answer["prompt_token_ids"], choice["token_ids"])
        return answer

    def chunks(self, body: dict[str, Any], said: str) -> list[dict[str, Any]]:
        chunks = super().chunks(body, said)
        sent: dict[int, list[int]] = {}
        for chunk in chunks:
            for choice in chunk["choices"]:
                sent.setdefault(choice["index"], []).extend(choice["token_ids"] or ())
        prompt_ids = next(chunk["prompt_token_ids"] for chunk in chunks if chunk.get("prompt_token_ids"))
        for ids in sent.values():
            self._keep(prompt_ids, ids)
        return chunks

    def _keep(self, prompt_ids: list[int], response_ids: list[int]) -> None:
        self.answers.append(Answer(tuple(prompt_ids), tuple(response_ids)))


class Endpoint:
    """Where the gateway finds the engine."""

    def __init__(self, base_url: str) -> None:
        self.base_url = base_url
        self.headers: dict[str, str] = {}

    async def ready(self, timeout_s: float) -> None:
        """It always is."""


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = Engine()
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def daemon(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """Gateway, receiver and store of a daemon; URL."""
    store = SqliteStore(tmp_path / "state" / STORE_FILE)

    @contextlib.asynccontextmanager
    async def life(_: FastAPI):
        async with store:
            yield

    app = FastAPI(lifespan=life)
    upstream = Upstream(Endpoint(engine.url), queue_timeout_s=5.0)
    app.include_router(gateway_router([ServedPolicy(POLICY, upstream)], store))
    app.include_router(otlp_router(store))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


def attempt(program: str, question: str, attempts: tuple[str, ...], daemon: str, folder: Path) -> None:
    (folder / "plain.py").write_text(PLAIN)
    path = folder / program if program == "plain.py" else ROOT / program
    done = subprocess.run(
        [sys.executable, "-c", ATTEMPTS, str(path), question, *attempts],
        env={
            **os.environ,
            "OPENAI_BASE_URL": f"{daemon}/v1",
            "OPENAI_API_KEY": "unused",
            "OPENAI_MODEL": POLICY,
            "LIGHTNING_ENDPOINT": daemon,
            "LIGHTNING_SPOOL_DIR": str(folder / "spool"),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("framework", PROGRAMS)
def test_every_token_that_the_engine_sampled_is_in_a_sample_once(framework, engine, daemon, tmp_path) -> None:
    # One process makes both, in half of the time, but where the framework keeps a client of the first one's event loop.
    first, second = ("one", "1.0"), ("two", "0.0")
    for attempts in (first, second) if framework == "openai agents" else (first + second,):
        attempt(*PROGRAMS[framework], attempts, daemon, tmp_path)
    config, out = tmp_path / "lightning.toml", tmp_path / "samples.parquet"
    config.write_text(
        f'[[policy]]\nname = "{POLICY}"\nagents = ["*"]\nmodel = "random:tiny"\nmax_sample_tokens = 9000\n'
    )
    done = CliRunner().invoke(
        command_line,
        ["build", "--spans", str(tmp_path / "state"), "--config", str(config), "--out", str(out)],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    samples = read_samples_parquet(out)

    built = [
        Answer(sample.token_ids[: segment.start], sample.token_ids[segment.start : segment.end])
        for sample in samples
        for segment in sample.segments
    ]
    assert engine.answers
    assert Counter(built) == Counter(engine.answers)
    assert {segment.policy_version for sample in samples for segment in sample.segments} == {VERSION}
    assert {sample.agent for sample in samples} == AGENTS[framework]
    for sample in samples:
        for segment in sample.segments:
            sampled = sample.behavior_logprobs[segment.start : segment.end]
            assert sampled == tuple(-0.25 * (place + 1) for place in range(len(sampled)))

    ledger = read_ledger(out)
    assert {row.outcome for row in ledger} == {Outcome.TRAINED}
    assert sum(row.tokens for row in ledger) == sum(len(answer.response_ids) for answer in engine.answers)

    words = words_of(read_source(tmp_path / "state", []))
    for sample in samples:
        for segment in sample.segments:
            said = words[segment.transition_id]
            assert said.answer is not None
            answer = chat_answer(said.answer)
            if not answer.get("tool_calls"):  # those the engine writes apart from its ids
                assert engine.decoded(sample.token_ids[segment.start : segment.end]) == answer["content"]


def test_the_ids_of_the_stub_decode_to_the_messages_that_it_was_sent() -> None:
    engine = Engine()
    body = {"model": POLICY, "messages": [{"role": "user", "content": "a"}], "return_token_ids": True}
    prompt = tuple(engine.completion(body, "a")["prompt_token_ids"])
    assert engine.decoded(prompt) == "".join(json.dumps(body["messages"]).split())
