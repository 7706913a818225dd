"""Environments of the real verifiers, in the interpreter that ``environments install verifiers`` makes."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from lightning_trainer.environments import Task
from lightning_trainer.environments.errors import EnvironmentRaisedError
from lightning_trainer.environments.protocol import HELD_OUT, TRAIN, Action, ToolCall
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.process import EnvironmentProcess

pytestmark = pytest.mark.slow

FILE = Path(__file__).with_name("verifiers_of_tests.py")
Start = Callable[[str], EnvironmentProcess]


def session_of(process: EnvironmentProcess, seed: int = 0, split: str = TRAIN) -> Session:
    return Session(process, Task("v", process.version, split, seed))


def test_one_turn_is_scored_by_all_of_the_rubric(started: Start) -> None:
    process = started(f"verifiers:{FILE}")
    played = ((0, None, 1.0, 1.0, 1.0), (0, "no", 0.25, 0.0, 1.0), (1, "a long answer that is wrong", 0.0, 0.0, 0.0))
    for seed, answer, reward, exact, short in played:
        session = session_of(process, seed)
        number = session.observation.text.split()[-1]
        assert session.observation.text == f"user: reverse 12\n\nassistant: 21\n\nuser: reverse {number}"
        assert (session.observation.instructions, session.tools) == ("Digits alone.", ())
        assert session.say(answer or number[::-1]) == ""
        assert (session.done, session.reward, session.turns) == (True, reward, 1)
        assert session.named_rewards == {"exact": exact, "short": short}


def test_rows_are_split_by_their_content_or_as_the_environment_says(started: Start) -> None:
    for options, held_out in (("", None), ("?own_evaluation=true", 5)):
        process = started(f"verifiers:{FILE}{options}")
        sizes = process.sizes
        assert sizes is not None
        asked = {
            split: {session_of(process, seed, split).observation.text for seed in range(sizes[split])}
            for split in (TRAIN, HELD_OUT)
        }
        assert asked[TRAIN].isdisjoint(asked[HELD_OUT])
        assert {split: len(questions) for split, questions in asked.items()} == sizes
        assert sizes == {TRAIN: 40, HELD_OUT: held_out} if held_out else sum(sizes.values()) == 40


def test_many_turns_end_as_the_environment_ends_them(started: Start) -> None:
    process, other = started(f"verifiers:{FILE}?kind=multi"), started(f"verifiers:{FILE}?kind=multi")
    found = []
    for played in (process, other):  # chance is the task's: another process meets the same number
        session = session_of(played, 3)
        low, high = 1, 20
        while not session.done:
            guess = (low + high) // 2
            said = session.say(str(guess))
            low, high = (guess + 1, high) if said == "higher" else (low, guess - 1)
        assert (session.observation.text, session.reward) == ("right", 1.0)
        found.append(guess)
    assert found[0] == found[1]
    session = session_of(process, 3)
    assert {session.say("0") for _ in range(5)} == {"higher"}
    session.say("0")
    assert (session.done, session.reward, session.turns) == (True, 0.0, 6)


def test_an_attempt_that_was_given_up_leaves_nothing_to_the_next(started: Start) -> None:
    process = started(f"verifiers:{FILE}?kind=multi")
    session_of(process, 1).say("0")
    assert session_of(process, 2).say("0") == "higher"


def test_tools_are_offered_called_and_answered_by_their_ids(started: Start) -> None:
    process = started(f"verifiers:{FILE}?kind=tool")
    session = session_of(process)
    (tool,) = session.tools
    assert (tool.name, tool.description) == ("add", "Add two numbers.")
    assert set(tool.parameters["properties"]) == {"a", "b"}
    first, second = map(int, re.findall(r"\d+", session.observation.text))
    told = session.step(
        Action(
            tool_calls=(
                ToolCall("add", {"a": first, "b": second}, "one"),
                ToolCall("add", {"_unreadable": "{"}, "two"),
                ToolCall("subtract", {}, "three"),
            )
        )
    )
    results = {result.id: result.text for result in told.tool_results}
    assert results.pop("one") == str(first + second)
    assert set(results) == {"two", "three"}
    assert all(results.values())
    assert (told.text, told.tools, session.done) == ("", None, False)
    session.say(str(first + second))
    assert (session.done, session.reward) == (True, 1.0)


def test_other_code_and_other_rows_are_another_version(started: Start, tmp_path: Path) -> None:
    (tmp_path / "changed.py").write_text(FILE.read_text() + "# changed\n")
    texts = (f"verifiers:{FILE}", f"verifiers:{FILE}?kind=tool", f"verifiers:{tmp_path}/changed.py")
    versions = {started(text).version for text in texts}
    assert len(versions) == 3
    assert all(re.fullmatch(r"1-verifiers-0\.2\.\d+-[0-9a-f]{8}", version) for version in versions)


def test_rows_that_hold_objects_are_the_same_version_and_tasks_in_every_process(started: Start) -> None:
    # Before: their digest had the objects' addresses in it
    one, other = started(f"verifiers:{FILE}?kind=objects"), started(f"verifiers:{FILE}?kind=objects")
    assert (one.version, one.sizes) == (other.version, other.sizes)


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (f"{FILE}?kind=group", "scores a group of rollouts at once; one at a time is played"),
        ("nowhere.py", r"there is no file .nowhere\.py.; write verifiers:path/to/file\.py"),
        ("no-such-environment", "Could not import 'no-such-environment' environment. Ensure the package"),
        (f"{FILE}?kind=single&shade=red", "unexpected keyword argument 'shade'"),
    ],
)
def test_what_cannot_be_played_is_one_sentence(started: Start, environment: str, sentence: str) -> None:
    with pytest.raises(EnvironmentRaisedError, match=sentence):
        started(f"verifiers:{environment}")


def test_what_the_environment_runs_on_may_fail_and_that_is_no_reward(started: Start) -> None:
    session = session_of(started(f"verifiers:{FILE}?kind=broken"))
    with pytest.raises(EnvironmentRaisedError, match="SandboxError: no sandbox answers"):
        session.say("hello")
    assert session.reward is None
