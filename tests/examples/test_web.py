"""examples/web: what is shown to the model solves the pages shown, and a right click alone is worth something."""

import re
import runpy
import shutil
import sys
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import lightning_instrumentation as lt
import pytest

from lightning_trainer.cli.environments.installed import install
from lightning_trainer.rollouts import Runner
from lightning_trainer.rollouts.step_runner import StepRunner
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]

ROOT = Path(__file__).parents[2]
ENDPOINT = "http://127.0.0.1:9"
PAGE = r'''
import re


class Page:
    """Three buttons; a click ends it, as on MiniWoB++'s."""

    def reset(self, task):
        names = task.random().sample(["Go", "Stop", "Wait", "Turn"], 3)
        self.right = task.random("which").choice([4, 5, 6])
        lines = [f'button "{name}" [{4 + place}]' for place, name in enumerate(names)]
        return f'Click on the "{names[self.right - 4]}" button.\n\n' + "\n".join(lines)

    def step(self, action):
        clicked = re.findall(r"click\((4|5|6)\)", action.text)
        return "", float(clicked == [str(self.right)]), bool(clicked)
'''


@pytest.fixture
def example(bare_names, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What train.py has; what it records waits on disk."""
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    monkeypatch.setattr(StepRunner, "train", lambda self, *, steps: None)
    monkeypatch.setenv("LIGHTNING_ENDPOINT", ENDPOINT)
    lt.shutdown(0)
    lt.init(ENDPOINT, spool_dir=tmp_path)
    sys.path.insert(0, str(ROOT / "examples" / "web"))
    yield runpy.run_path(str(ROOT / "examples" / "web" / "train.py"))
    lt.shutdown(0)


def clicks_what_it_is_asked(request: dict[str, Any]) -> dict[str, Any]:
    """Stands in for the model."""
    return {"content": solution(request["messages"][-1]["content"])}


def solution(page: str) -> str:
    label = re.findall(r'Click on the "(.+)" button', page)[0]
    line, number = re.findall(rf'^(button "{re.escape(label)}" \[(\d+)\])$', page, flags=re.MULTILINE)[0]
    return f"{line}: click({number})"


def results(example: dict[str, Any], model: Any, environment: str, monkeypatch, capsys) -> tuple[list[str], list]:
    """Return what train.py prints of its evaluations, and what it asked the model."""
    words = ["train.py", "--heldout", "6", "--concurrency", "2", "--environment", environment]
    monkeypatch.setattr(sys, "argv", words)
    with serving(model) as (url, requests):
        monkeypatch.setitem(example["AGENT"], "base_url", url)
        example["main"]("A test.", "web", example["ENVIRONMENT"], example["AGENT"])
    return re.findall(r"^(?:before|after): .*", capsys.readouterr().out, re.MULTILINE), requests


@pytest.mark.process
def test_a_right_click_solves_a_page_and_nothing_else_does(example, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "page.py").write_text(PAGE)
    environment = f"{tmp_path / 'page.py'}:Page"
    printed, requests = results(example, clicks_what_it_is_asked, environment, monkeypatch, capsys)
    assert printed == ["before: 6 of 6 held-out pages solved", "after: 6 of 6 held-out pages solved"]
    assert len(requests) == 2 * 6  # one click a page
    said = cycle(["", "Go", "click(9)", "click(", 'click("Go")', "[4]"])
    printed, _ = results(example, lambda request: {"content": next(said)}, environment, monkeypatch, capsys)
    assert printed == ["before: 0 of 6 held-out pages solved", "after: 0 of 6 held-out pages solved"]


@pytest.mark.slow
@pytest.mark.skipif(not (shutil.which("chromium") and shutil.which("chromedriver")), reason="needs Chromium")
def test_the_pages_themselves(example, monkeypatch, capsys) -> None:
    monkeypatch.chdir(ROOT)
    if not (ROOT / ".venv-environments" / "miniwob").exists():
        install("miniwob", ROOT / ".venv-environments")
    printed, requests = results(example, clicks_what_it_is_asked, example["ENVIRONMENT"], monkeypatch, capsys)
    assert printed == ["before: 6 of 6 held-out pages solved", "after: 6 of 6 held-out pages solved"]
    held_out = {request["messages"][-1]["content"] for request in requests}
    assert len(held_out) == 6
    options = {"policy": "web", "agent": lambda session: None, "concurrency": 1}
    with Runner.from_environment(example["ENVIRONMENT"], **options) as runner:
        for task in runner.environment.training_tasks(1, 8):
            with runner.environment._playable() as page:
                assert page.reset(task).text not in held_out


def test_what_is_shown_solves_the_pages_shown_which_have_no_button_of_miniwobs(example) -> None:
    shown = example["EXAMPLES"]
    for asked, answered in zip(shown[::2], shown[1::2], strict=True):
        assert answered["content"] == solution(asked["content"])
        buttons = re.findall(r'button "(.+)"', asked["content"])
        assert {"ok", "okay", "cancel", "submit", "yes", "no", "next", "previous"}.isdisjoint(map(str.lower, buttons))
    assert len({message["content"] for message in shown[1::2]}) > 1
