"""examples/clerk: its tasks are what it says, and the search that its README shows finds a better text."""

import json
import os
import re
import runpy
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.config.file import load_config
from tests.lightning_trainer.judges.scripted import scripted_endpoint  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples" / "clerk"
TASKS = runpy.run_path(str(FOLDER / "tasks.py"))
CLERK = runpy.run_path(str(FOLDER / "clerk.py"))
README = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
DOCS = (ROOT / "docs" / "prompts.md").read_text(encoding="utf-8")
FEW = {"train": slice(3, 6), "validation": slice(1, 4), "heldout": slice(3)}
"""Lines of the files with a letter that ``small_model`` gets right without examples, and two that it does not."""


def optimize_command(page: str) -> list[str]:
    text = re.search(r"lightning-trainer prompts optimize clerk --config.*?clerk\.py", page, flags=re.DOTALL)
    assert text is not None
    return shlex.split(text[0].replace("\\\n", " "))


def test_the_files_are_what_the_program_writes() -> None:
    for name, tasks in TASKS["tasks_of"](0).items():
        assert (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8") == TASKS["lines"](tasks)
        assert len({task.id for task in tasks}) == len(tasks) == TASKS["FILES"][name]


@pytest.mark.parametrize("seed", range(5))
def test_no_letter_is_in_two_files_and_held_out_ones_name_others(seed: int) -> None:
    files = TASKS["tasks_of"](seed)
    questions = [task.question for tasks in files.values() for task in tasks]
    assert len(set(questions)) == len(questions)
    known = " ".join(task.question for name in ("train", "validation") for task in files[name])
    world = TASKS["HELD_OUT"]
    assert not [word for word in (*world.people, *world.towns) if word in known]
    for task in files["heldout"]:
        assert task.town in task.question
        assert re.findall(r"\d+", task.question)[0] not in known
    assert files != TASKS["tasks_of"](seed + 1)


@pytest.mark.parametrize(
    ("said", "earned"),
    [
        ("Bern", 1.0),
        ("The customer is in Bern.", 1.0),
        ("The customer is in Basel.", 0.0),
        ("The customer is likely in the town of Bern.", 0.0),
        ("Ana Kelberg, Bern, Switzerland", 1.0),
        ("Ana Kelberg, of Bern, Switzerland", 0.0),
        ("", 0.0),
    ],
)
def test_an_answer_names_the_town_and_fits_on_a_label(said: str, earned: float) -> None:
    assert CLERK["score"](said, "Bern") == earned


def test_its_daemon_trains_nothing_and_shows_examples() -> None:
    config = load_config(FOLDER / "lightning.toml")
    assert not config.only_policy.train
    (section,) = config.prompt
    assert (section.name, section.kind) == ("clerk", "examples")


def test_both_pages_show_the_same_command() -> None:
    assert optimize_command(README) == optimize_command(DOCS)


def small_model(messages: str) -> str:
    """As a small model: it answers at length unless it was shown how, and only some towns are shorter."""
    (letter,) = (one["content"] for one in json.loads(messages) if one["role"] == "user")
    system = json.loads(messages)[0]["content"]
    town = next(town for world in ("KNOWN", "HELD_OUT") for town in TASKS[world].towns if town in letter)
    was_shown = re.search(r"User: .*?\nAssistant: The customer is in \w+\.$", system, flags=re.DOTALL)
    if was_shown or int(re.findall(r"\d+", letter)[0]) % 3 == 0:
        return f"The customer is in {town}."
    return f"The customer is most likely in the town of {town}."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example with few tasks, and a configuration without the engine."""
    for name, few in FEW.items():
        lines = (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
        (tmp_path / f"{name}.jsonl").write_text("".join(lines[few]))
    own = (FOLDER / "lightning.toml").read_text(encoding="utf-8").split("\n\n")
    settings = "\n\n".join(part for part in own if not part.startswith(("[engine]", "[[policy]]")))
    (tmp_path / "lightning.toml").write_text(settings.replace("[daemon]", "[daemon]\nport = 0"))
    return tmp_path


@pytest.mark.process
def test_the_command_of_the_readme_finds_a_better_text_and_ctrl_c_ends_it(folder: Path, lightning: Any) -> None:
    words = optimize_command(README)
    words[words.index("--attempts") + 1] = "12"
    words[words.index("python")] = sys.executable
    moved = [str(folder / Path(word).name) if word.endswith((".jsonl", ".toml")) else word for word in words]
    command = moved[1:]
    with scripted_endpoint() as model, (folder / "daemon.log").open("wb") as log:
        model.answers = [small_model]
        environment = {**os.environ, "OPENAI_BASE_URL": model.url, "LIGHTNING_SPOOL_DIR": str(folder / "spool")}
        environment.pop("LIGHTNING_ENDPOINT", None)
        serve = ("serve", "--config", str(folder / "lightning.toml"))
        daemon = lightning.start(*serve, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 120
            while not (folder / ".lightning" / "daemon.json").exists():
                assert daemon.poll() is None, (folder / "daemon.log").read_text()[-3000:]
                assert time.monotonic() < deadline, (folder / "daemon.log").read_text()[-3000:]
                time.sleep(0.1)
            done = lightning.run(*command, cwd=ROOT, env=environment, timeout=300)
            assert done.returncode == 0, done.stderr[-3000:]
            said = done.stdout
            assert re.search(r"clerk@v0, which the program has: 0\.333 at 3 validation tasks", said), said
            assert re.search(r"clerk@v1 by examples from clerk@v0: 1\.000 at 3 validation tasks, kept", said), said
            assert re.search(r"at 3 held-out tasks: 0\.333 before, 1\.000 now, \+0\.\d+ \(95 %: ", said), said
            interrupted(lightning, command, environment, folder, model.bodies)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


def interrupted(
    lightning: Any, command: list[str], environment: dict[str, str], folder: Path, requests: list[dict]
) -> None:
    """A second search begins as the first did, and Ctrl-C ends it with nothing but a word."""
    before, deadline = len(requests), time.monotonic() + 120
    with (folder / "said").open("w+") as said:
        running = lightning.start(*command, cwd=ROOT, env=environment, stdout=said, stderr=said)
        while len(requests) == before and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        status = running.wait(60)
        said.seek(0)
        text = said.read()
    assert status == 130, text
    assert "Traceback" not in text
