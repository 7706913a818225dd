"""What docs/prompts.md shows, with a real daemon and the page's own program: only the two models are a script's."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest

from lightning_trainer.config import Config
from lightning_trainer.config.prompts import ExamplesConfig, ReflectConfig
from tests.lightning_trainer.judges.scripted import scripted_endpoint  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.process

PAGE = (Path(__file__).parents[3] / "docs" / "prompts.md").read_text(encoding="utf-8")
GOOD = "Name the city, and be brief."
TASKS = {"train": range(8), "test": range(100, 104)}
"""Numbers of parcels: each attempt is a program that imports openai, which takes seconds."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)


def program() -> str:
    return next(block for block in blocks("python") if block.startswith("# agent.py"))


def clerk(messages: str) -> str:
    """The agent's model: it names the city where it is told to, and else only for one parcel in four."""
    number = int(re.findall(r"parcel (\d+)", messages)[-1])
    return f"In city {number}." if "Name the city" in messages or number % 4 == 0 else "On its way."


def reflecting(answers: list[str]):
    """The model that writes: one text after another, the last from then on."""
    left = list(answers)

    def answer(messages: str) -> str:
        assert "What is wanted" not in messages
        assert "[what it earned]" in messages
        return json.dumps({"diagnosis": "It names no city.", "prompt": left.pop(0) if len(left) > 1 else left[0]})

    return answer


class Service:
    """A folder with the page's program and configuration, a daemon on it, and the page's commands."""

    def __init__(self, folder: Path, lightning: Any, agents_url: str, writers_url: str) -> None:
        self.folder = folder
        self._lightning = lightning
        (folder / "agent.py").write_text(program())
        settings = next(block for block in blocks("toml"))
        settings = settings.replace("https://api.openai.com/v1", writers_url)
        (folder / "lightning.toml").write_text(settings.replace("[daemon]", "[daemon]\nport = 0"))
        for name, numbers in TASKS.items():
            lines = [{"id": f"{name}-{n}", "question": f"Where is parcel {n}?", "answer": f"city {n}"} for n in numbers]
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.environment = os.environ | {
            "OPENAI_BASE_URL": agents_url,
            "OPENAI_API_KEY": "k",
            "LIGHTNING_SPOOL_DIR": str(folder / "spool"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }

    def command(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self._lightning.run(*arguments, cwd=self.folder, env=self.environment | environment, timeout=300)

    def ours(self, *arguments: str) -> str:
        done = self.command(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout[-2000:]}{done.stderr[-3000:]}"
        return done.stdout

    def answers(self, number: int) -> str:
        """What the program prints for a task, as it runs without a search."""
        done = subprocess.run(
            [sys.executable, "agent.py"],
            cwd=self.folder,
            env={**self.environment, **self.reached()},
            input=json.dumps({"id": "x", "question": f"Where is parcel {number}?", "answer": f"city {number}"}),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.strip()

    def reached(self) -> dict[str, str]:
        return {"LIGHTNING_ENDPOINT": json.loads((self.folder / ".lightning" / "daemon.json").read_text())["url"]}


@pytest.fixture(scope="module")
def service(lightning, tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    with scripted_endpoint() as agents, scripted_endpoint() as writers:
        agents.answers = [clerk]
        writers.answers = [reflecting(["Be polite.", GOOD])]
        service = Service(folder, lightning, agents.url, writers.url)
        with (folder / "daemon.log").open("wb") as log:
            daemon = lightning.start("serve", cwd=folder, env=service.environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not (folder / ".lightning" / "daemon.json").exists():
                assert daemon.poll() is None, (folder / "daemon.log").read_text()[-3000:]
                assert time.monotonic() < deadline, (folder / "daemon.log").read_text()[-3000:]
                time.sleep(0.1)
            yield service
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


def test_the_page_finds_a_better_text_serves_it_and_goes_back(service):
    command = next(line for line in blocks("bash")[0].splitlines() if "optimize" in line)
    words = command.replace("-- python", f"-- {sys.executable}").split()[1:]
    said = service.ours(*words)
    assert re.search(r"clerk@v0, which the program has: 0\.\d+ at 4 validation tasks", said), said
    assert "clerk@v1 by reflect from clerk@v0" in said
    assert "not better there" in said
    assert re.search(r"clerk@v2 by reflect from clerk@v0: 1\.000 at 4 validation tasks, kept", said), said
    assert "best: clerk@v2, 1.000" in said
    assert re.search(
        r"at 4 held-out tasks: 0\.250 before, 1\.000 now, \+0\.750 \(95 %: [-+]0\.\d+ to \+\d\.\d+\)", said
    ), said
    assert re.search(r"the texts took \d+ calls of the model that writes them: \d+00 tokens in, \d+ out", said), said
    assert service.answers(1) == "0.0", "nothing is served that was not chosen"

    assert "lightning-trainer prompts use clerk@v2" in said
    shown = [
        line
        for block in blocks("bash")
        for line in block.splitlines()
        # the example's own command is run by tests/examples/prompts/test_clerk.py
        if line.startswith("lightning-trainer prompts") and "examples/clerk" not in line
    ]
    outputs = {}
    for line in shown[1:]:
        if "add" in line:
            (service.folder / "brief.txt").write_text("You work for a parcel service. Be brief.\n")
        arguments = [word.strip('"') for word in line.split()[1:]]
        outputs[line] = service.ours(*arguments)
        if line.endswith("use clerk@v2"):
            assert service.answers(1) == "1.0", "the next program has it"
    assert service.answers(1) == "0.0", "and the one after going back has not"
    listed, table, diff = (
        outputs[f"lightning-trainer prompts {what}"] for what in ("list", "show clerk", "show clerk@v2 --diff")
    )
    assert re.search(r"clerk\s+3\s+v0", listed)
    assert "It names no city." in table
    assert re.search(r"v2\s+v0\s+candidate\s+reflect\s+1\.000 of 4\s+1\.000 of 4", table), table
    assert f"+{GOOD}" in diff
    versions = json.loads(service.ours("prompts", "show", "clerk", "--json"))
    assert [(one["version"], one["state"], one["made_by"]) for one in versions] == [
        (0, "live", "code"),
        (1, "candidate", "reflect"),
        (2, "retired", "reflect"),
        (3, "candidate", "person"),
    ]


def test_what_is_wrong_is_one_sentence(service):
    service.answers(1)  # a prompt is known once a program has asked for it
    tasks = ("--tasks", "train.jsonl", "--attempts", "100")
    wrong = [
        (("prompts", "show", "nobody"), "there is no prompt 'nobody'"),
        (("prompts", "use", "clerk"), "which version of 'clerk' is to be served"),
        (("prompts", "use", "clerk@v99"), "99"),
        (("prompts", "optimize", "clerk", *tasks, "--use", "--", "python", "agent.py"), "--held-out FILE"),
        (
            ("prompts", "optimize", "clerk", "--tasks", "train.jsonl", "--attempts", "3", "--", "python", "agent.py"),
            "are needed",
        ),
        (
            ("prompts", "optimize", "other", *tasks, "--config", "lightning.toml", "--", sys.executable, "agent.py"),
            "did not ask for prompt 'other'",
        ),
    ]
    for command, sentence in wrong:
        done = service.command(*command, **service.reached())
        assert done.returncode != 0, command
        assert sentence in " ".join((done.stdout + done.stderr).split()), (command, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr


def test_every_setting_and_its_default_is_in_the_table():
    section = tomllib.loads(blocks("toml")[0])
    assert isinstance(Config.model_validate(section).prompt[0], ReflectConfig)
    rows = re.findall(r"^\| (`.+?) \| (\S+) \|(.*?)\|", PAGE, flags=re.MULTILINE)
    for kind, settings in (("reflect", ReflectConfig), ("examples", ExamplesConfig)):
        told = {
            name: default
            for names, of, defaults in rows
            if of in ("all", f"`{kind}`")
            for name, default in zip(
                re.findall(r"`(\w+)`", names), re.findall(r"`([^`]+)`", defaults) or [None] * 9, strict=False
            )
        }
        assert set(settings.model_fields) - {"kind"} == set(told)
        for name, default in told.items():
            if default is not None:
                assert str(settings.model_fields[name].default).removesuffix(".0").lower() == default, name


def of_framework(name: str) -> str:
    """The first code in a framework's row."""
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {name} |"))
    return re.findall(r"`([^`]+)`", row)[0]


def in_use(monkeypatch) -> dict[str, object]:
    texts = iter(["first", "second"])
    monkeypatch.setattr(lt, "prompt", lambda name, default: f"{next(texts)} {name}: {default}")
    return {"lt": lt, "INSTRUCTIONS": "You work."}


def test_an_agent_of_openai_agents_asks_for_its_text_in_each_run(monkeypatch):
    agents = pytest.importorskip("agents")
    agent = eval(of_framework("OpenAI Agents"), {"Agent": agents.Agent, **in_use(monkeypatch)})
    asked = [asyncio.run(agent.get_system_prompt(agents.RunContextWrapper(None))) for _ in range(2)]
    assert asked == ["first clerk: You work.", "second clerk: You work."]


def test_an_agent_of_langchain_asks_for_its_text_in_each_run(monkeypatch):
    middleware = pytest.importorskip("langchain.agents.middleware")
    from langchain.agents import create_agent
    from langchain_core.language_models import FakeListChatModel

    asked = []

    class Model(FakeListChatModel):
        def _call(self, messages, *arguments, **options) -> str:
            asked.append(messages[0].content)
            return super()._call(messages, *arguments, **options)

    assert "from langchain.agents.middleware import dynamic_prompt" in PAGE
    named = {"create_agent": create_agent, "dynamic_prompt": middleware.dynamic_prompt, "tools": []}
    agent = eval(of_framework("LangChain"), {**named, "model": Model(responses=["done"]), **in_use(monkeypatch)})
    for _ in range(2):
        agent.invoke({"messages": [("user", "hello")]})
    assert asked == ["first clerk: You work.", "second clerk: You work."]
