"""MiniWoB++'s real pages in a real Chromium, in the interpreter that ``environments install miniwob`` makes."""

import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from lightning_trainer.environments import Task
from lightning_trainer.environments.errors import (
    EnvironmentDiedError,
    EnvironmentRaisedError,
    EnvironmentTimeoutError,
)
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.protocol import HELD_OUT, TRAIN, Action, ToolCall
from lightning_trainer.environments.registry import EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.pool import EnvironmentPool
from lightning_trainer.environments.worker.process import EnvironmentProcess

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (shutil.which("chromium") and shutil.which("chromedriver")),
        reason="needs Chromium and its driver (Debian: apt install chromium chromium-driver)",
    ),
]

Start = Callable[[str], EnvironmentProcess]
FOLDER = Path(__file__).parents[3] / ".venv-environments"


def session_of(process: EnvironmentProcess, seed: int = 0, split: str = TRAIN) -> Session:
    return Session(process, Task("miniwob", process.version, split, seed))


def number_of(session: Session, what: str) -> int:
    """The number of the line that has these words."""
    (number,) = re.findall(rf"^.*{re.escape(what)}.* \[(\d+)\]", session.observation.text, flags=re.MULTILINE)
    return int(number)


def log_in(session: Session) -> None:
    name, password = re.findall(r'"([^"]+)"', session.observation.text.splitlines()[0])
    field = number_of(session, "#username")
    session.say(f"type({field}, wrong)")
    assert '#username "wrong"' in session.observation.text
    session.say(f"I type it again. type({field}, '{name}')")  # in the place of what was there
    assert f'#username "{name}"' in session.observation.text
    session.say(f"type({number_of(session, '#password')}, {password})")
    session.say(f"click({number_of(session, 'Login')})")


def choose(session: Session) -> None:
    (entry,) = re.findall(r"Select (.+) from the list", session.observation.text)
    field = number_of(session, "#options")
    assert session.say(f'type({field}, "no such entry")').startswith(f'The list {field} has no entry "no such entry".')
    session.say(f'type({field}, "{entry}")')
    session.say(f"click({number_of(session, 'Submit')})")


def check(session: Session) -> None:
    (names,) = re.findall(r"Select (.+) and click", session.observation.text)
    for name in names.split(", ") if names != "nothing" else []:
        session.say(f"click({box_of(session, name)})")
        assert f" checked {name}" in session.observation.text
    session.say(f"click({number_of(session, 'Submit')})")


def box_of(session: Session, name: str) -> int:
    (number,) = re.findall(rf"^input_checkbox .*{re.escape(name)} \[(\d+)\]$", session.observation.text, re.MULTILINE)
    return int(number)


def press(session: Session) -> None:
    (name,) = re.findall(r'"([^"]+)" button', session.observation.text)
    numbers = re.findall(rf'^button "{re.escape(name)}" \[(\d+)\]$', session.observation.text, flags=re.MULTILINE)
    session.say(f"click({numbers[0]})")


@pytest.mark.parametrize(
    ("page", "play"),
    [("click-button", press), ("login-user", log_in), ("choose-list", choose), ("click-checkboxes", check)],
)
def test_who_does_what_the_page_says_earns_one(page: str, play: Callable[[Session], None], started: Start) -> None:
    process = started(f"miniwob:{page}")
    for split in (TRAIN, HELD_OUT):
        session = session_of(process, 1, split)
        play(session)
        assert (session.observation.text, session.reward, session.done) == ("Right.", 1.0, True)


def test_a_task_is_the_same_page_in_another_process_and_no_held_out_page_is_trained(started: Start) -> None:
    one, other = started("miniwob:enter-text"), started("miniwob:enter-text")
    seen = {split: [session_of(one, seed, split).observation.text for seed in range(12)] for split in (TRAIN, HELD_OUT)}
    assert [session_of(other, seed).observation.text for seed in range(12)] == seen[TRAIN]
    assert set(seen[TRAIN]).isdisjoint(seen[HELD_OUT])
    assert min(len(set(pages)) for pages in seen.values()) > 3


def test_what_is_wrong_is_said_and_a_wrong_end_is_nothing(started: Start) -> None:
    process = started("miniwob:enter-text?max_turns=4")
    session = session_of(process)
    field = number_of(session, "input_text")
    assert session.say("I would press the button.").startswith("That is not an action. Enter")
    assert session.say("click(99)").startswith("There is no element 99. Enter")
    assert session.say(f"type({field}, \U0001f600)").startswith("That text cannot be typed. Enter")
    session.say(f"click({number_of(session, 'Submit')})")
    assert (session.observation.text, session.reward, session.done) == ("Wrong.", 0.0, True)
    session = session_of(process)
    assert [session.say(f"click({field})") for _ in range(4)][-1] == "Too many actions."
    assert (session.reward, session.done) == (0.0, True)


def test_the_pages_own_clock_does_not_run(started: Start) -> None:
    session = session_of(started("miniwob:click-button"))
    time.sleep(11)  # their ten seconds
    press(session)
    assert session.reward == 1.0


def test_click_and_type_are_tools_where_it_is_asked(started: Start) -> None:
    session = session_of(started("miniwob:enter-text?tools=true"))
    assert [tool.name for tool in session.tools] == ["click", "type"]
    (text,) = re.findall(r'"([^"]+)"', session.observation.text.splitlines()[0])
    field, button = number_of(session, "input_text"), number_of(session, "Submit")
    assert session.call("click", {"ref": "one"}).startswith("That is not an action.")
    session.step(
        Action(
            tool_calls=(
                ToolCall("type", {"ref": field, "text": text}, "a"),
                ToolCall("click", {"ref": button}, "b"),
                ToolCall("click", {"ref": button}, "c"),
            )
        )
    )
    assert [(result.id, result.text) for result in session.observation.tool_results] == [
        ("a", "ok"),
        ("b", "ok"),
        ("c", "It is over. Right."),
    ]
    assert (session.done, session.reward) == (True, 1.0)


def browsers(process: EnvironmentProcess, name: str) -> list[psutil.Process]:
    return [child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == name]


@pytest.mark.parametrize("name", ["chromedriver", "chromium"])
def test_a_browser_that_dies_is_a_failed_attempt_and_the_next_has_another(name: str, started: Start) -> None:
    started("miniwob:click-button").close()  # it is installed
    launch = launch_of(EnvironmentSpec.parse("miniwob:click-button"), FOLDER)
    with EnvironmentPool(launch, Limits(), size=1) as pool:
        with pool.lease() as process:
            session = session_of(process)
            everything = psutil.Process(process.pid).children(recursive=True)
            for browser in browsers(process, name):
                browser.kill()
            with pytest.raises(
                EnvironmentDiedError, match="ended with status 1 in step 1: the browser does not answer"
            ):
                session.say("click(4)")
        deadline = time.monotonic() + 10
        while any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in everything):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        with pool.lease() as process:
            session = session_of(process)
            press(session)
            assert session.reward == 1.0


def test_a_browser_that_hangs_is_killed_with_all_of_it(started: Start) -> None:
    process = started("miniwob:click-button")
    session = session_of(process)
    everything = psutil.Process(process.pid).children(recursive=True)
    for browser in browsers(process, "chromium"):
        os.kill(browser.pid, signal.SIGSTOP)
    with pytest.raises(EnvironmentTimeoutError, match="did not answer step 1 within 5 s; it was killed"):
        session.say("click(4)")
    time.sleep(1)
    assert not [one for one in everything if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("page", "sentence"),
    [
        ("no-such-page", r"MiniWoB\+\+ has no page 'no-such-page'; its pages are at https://miniwob.farama.org"),
        ("click-button?chromium=/nowhere", "there is no chromium at /nowhere; install one"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(page: str, sentence: str, started: Start) -> None:
    with pytest.raises(EnvironmentRaisedError, match=sentence):
        started(f"miniwob:{page}")


def test_a_page_that_is_always_the_same_is_not_split(started: Start) -> None:
    process = started("miniwob:click-test")
    assert "Click Me!" in session_of(process, 0, HELD_OUT).observation.text
    with pytest.raises(EnvironmentRaisedError, match="none of 64 candidates belongs to train; there are too few"):
        session_of(process, 0, TRAIN)
    assert browsers(process, "chromedriver") == []
