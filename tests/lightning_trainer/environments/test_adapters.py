"""Every adapter against the real package, in the interpreter that ``environments install`` makes for it.

The interpreters are made below ``.venv-environments`` the first time, which takes minutes, and kept.
"""

import itertools
import json
import re
import socket
import subprocess
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lightning_trainer.environments import Task
from lightning_trainer.environments.errors import EnvironmentRaisedError
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.protocol import HELD_OUT, TRAIN
from lightning_trainer.environments.registry import KNOWN, EnvironmentSpec, launch_of
from lightning_trainer.environments.session import Session
from lightning_trainer.environments.worker.process import EnvironmentProcess

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".venv-environments"
Play = Callable[[Session], None]
Start = Callable[[str], EnvironmentProcess]


def shortest(start: str, moved: Callable[[str, str], str | None], won: Callable[[str], bool]) -> list[str]:
    """Breadth first over what a board looks like."""
    ways: dict[str, list[str]] = {start: []}
    queue = deque([start])
    while queue:
        board = queue.popleft()
        if won(board):
            return ways[board]
        for move in ("up", "down", "left", "right"):
            after = moved(board, move)
            if after is not None and after not in ways:
                ways[after] = [*ways[board], move]
                queue.append(after)
    raise AssertionError(f"there is no way in\n{start}")


STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def walk(session: Session) -> None:
    board = [line.split() for line in session.observation.text.splitlines()]
    places = {(r, c): field for r, line in enumerate(board) for c, field in enumerate(line)}
    (start,) = (place for place, field in places.items() if field == "P")

    def moved(place: str, move: str) -> str | None:
        r, c = json.loads(place)
        to = (r + STEPS[move][0], c + STEPS[move][1])
        return json.dumps(to) if places.get(to) in ("_", "G") else None

    for move in shortest(json.dumps(start), moved, lambda place: places[tuple(json.loads(place))] == "G"):
        session.say(f"I go {move}.")


def push(session: Session) -> None:
    start = session.observation.text
    fixed = {
        (r, c): "O" if field in "O*" else "#" if field == "#" else "_"
        for r, line in enumerate(start.splitlines())
        for c, field in enumerate(line.split())
    }

    def moved(board: str, move: str) -> str | None:
        fields = {(r, c): field for r, line in enumerate(board.splitlines()) for c, field in enumerate(line.split())}
        (place,) = (place for place, field in fields.items() if field == "P")
        (row, column), (down, right) = place, STEPS[move]
        to, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if fields[to] == "#":
            return None
        if fields[to] in "X*":
            if fields.get(beyond) not in ("_", "O"):
                return None
            fields[beyond] = "*" if fixed[beyond] == "O" else "X"
        fields[to], fields[place] = "P", fixed[place]
        rows = itertools.groupby(sorted(fields), key=lambda key: key[0])
        return "\n".join(" ".join(fields[key] for key in row) for _, row in rows)

    for move in shortest(start, moved, lambda board: "X" not in board):
        session.say(move)


def reckon(session: Session) -> None:
    expression = re.search(r"[-+ \d]{5,}", session.observation.text)
    assert expression is not None
    terms = re.findall(r"[-+]? *\d+", expression[0])
    session.say(f"<answer>{sum(int(term.replace(' ', '')) for term in terms)}</answer>")


def bisect(session: Session) -> None:
    low, high = 1, 20
    while not session.done:
        guess = (low + high) // 2
        low, high = (guess + 1, high) if "higher" in session.say(f"[{guess}]") else (low, guess - 1)


def find_the_coin(session: Session) -> None:
    objective = session.observation.text.partition("\n\n")[0]
    for direction in re.findall(r"\b(north|south|east|west)\b", objective):
        session.say(f"go {direction}")
    session.say("take coin")


CASES: dict[str, Play] = {
    "frozenlake:4x4": walk,
    "frozenlake:6x6?frozen=0.9": walk,
    "sokoban:6x6": push,
    "reasoning-gym:chain_sum": reckon,
    "textarena:GuessTheNumber-v0": bisect,
    "textworld:coin_collector?level=2": find_the_coin,
}


@pytest.mark.parametrize("environment", CASES)
@pytest.mark.slow
def test_who_plays_well_earns_one_and_the_task_is_the_same_in_another_process(environment: str, started: Start) -> None:
    one, other = started(environment), started(environment)
    task = Task(environment, one.version, HELD_OUT, 1)
    first = Session(one, task)
    assert Session(other, task).observation == first.observation
    CASES[environment](first)
    assert (first.done, first.reward) == (True, 1.0)


@pytest.mark.parametrize(
    "environment",
    [
        "frozenlake:4x4",
        "sokoban:6x6",
        "reasoning-gym:chain_sum",
        "gymnasium:Taxi-v4",
        "gymnasium:Blackjack-v1",
        "gymnasium:CartPole-v1",
        "textarena:LightsOut-v0",
    ],
)
@pytest.mark.slow
def test_nothing_that_training_sees_is_held_out(environment: str, started: Start) -> None:
    process = started(environment)
    seen = {
        split: {process.reset(Task(environment, process.version, split, seed)).text for seed in range(150)}
        for split in (TRAIN, HELD_OUT)
    }
    assert seen[TRAIN].isdisjoint(seen[HELD_OUT])
    assert min(map(len, seen.values())) > 20
    assert process.holds_out


@pytest.mark.slow
def test_a_game_that_opens_with_the_same_words_is_held_out_by_what_it_hides(started: Start) -> None:
    process = started("textarena:GuessTheNumber-v0")
    hidden: dict[str, set[int]] = {}
    for split in (TRAIN, HELD_OUT):
        for seed in range(60):
            session = Session(process, Task("textarena:GuessTheNumber-v0", process.version, split, seed))
            low, high = 1, 20
            while not session.done:
                guess = (low + high) // 2
                low, high = (guess + 1, high) if "higher" in session.say(f"[{guess}]") else (low, guess - 1)
            hidden.setdefault(split, set()).add(guess)
    assert hidden[TRAIN].isdisjoint(hidden[HELD_OUT])
    assert hidden[TRAIN] | hidden[HELD_OUT] == set(range(1, 21))
    assert process.holds_out


@pytest.mark.parametrize("environment", ["gymnasium:CliffWalking-v1", "textarena:TowerOfHanoi-v0"])
@pytest.mark.slow
def test_an_environment_that_always_starts_alike_says_that_it_holds_nothing_out(environment, started: Start) -> None:
    process = started(environment)
    assert not process.holds_out
    first, second = (process.reset(Task(environment, process.version, split)) for split in (TRAIN, HELD_OUT))
    assert first == second


@pytest.mark.slow
def test_taxi_takes_words_and_says_what_is_none(started: Start) -> None:
    process = started("gymnasium:Taxi-v4")
    session = Session(process, Task("gymnasium:Taxi-v4", process.version))
    assert session.observation.instructions == "Answer with one action: south, north, east, west, pickup, dropoff."
    assert session.say("hm").startswith("That is not an action.")
    assert "+---------+" in session.say("go north")
    taxi, passenger, destination = (
        re.search(rf"^{color}: row \d, column \d+", session.observation.text, flags=re.MULTILINE)
        for color in ("yellow", "blue", "magenta")
    )
    assert taxi
    assert passenger
    assert destination
    assert session.rewards == [0.0, -1.0]


@pytest.mark.slow
def test_actions_that_are_not_discrete_are_refused(started: Start) -> None:
    with pytest.raises(EnvironmentRaisedError, match="only environments with discrete actions"):
        started("gymnasium:Pendulum-v1")


@pytest.mark.slow
def test_skyrl_gym_scores_a_task_from_a_file(started: Start) -> None:
    process = started("skyrl-gym:gsm8k")
    fields: dict[str, Any] = {"id": "a", "prompt": "What is 6 * 7?", "reward_spec": {"ground_truth": "42"}}
    for answer, reward in (("#### 42", 1.0), ("#### 41", 0.0)):
        session = Session(process, Task("skyrl-gym:gsm8k", process.version, name="a", fields=fields))
        assert session.observation.text == "What is 6 * 7?"
        session.say(answer)
        assert (session.done, session.reward) == (True, reward)
    with pytest.raises(EnvironmentRaisedError, match="has no prompt; skyrl-gym's tasks come from a file"):
        process.reset(Task("skyrl-gym:gsm8k", process.version))
    asked = [("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "#### 2"), ("user", "What is 6 * 7?")]
    fields["prompt"] = [{"role": role, "content": content} for role, content in asked]
    observation = process.reset(Task("skyrl-gym:gsm8k", process.version, name="a", fields=fields))
    assert observation.instructions == "Be brief."
    assert observation.text == "user: 1 + 1?\n\nassistant: #### 2\n\nuser: What is 6 * 7?"


@pytest.fixture(scope="module")
def openenv_server() -> Iterator[str]:
    python = install_openenv()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("openenv_server.py")
    with subprocess.Popen([str(python), "-I", str(script), str(port)]) as server:
        url = f"http://127.0.0.1:{port}"
        give_up = time.monotonic() + 60
        while True:
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < give_up
                time.sleep(0.3)
        yield url
        server.kill()


def install_openenv() -> Path:
    """The server's side; ours speaks its protocol and needs none of it."""
    home = FOLDER / "openenv"
    if not home.exists():
        subprocess.run(["python", "-m", "venv", str(home)], check=True)
        subprocess.run([str(home / "bin/python"), "-m", "pip", "install", "-q", "openenv-core==0.3.0"], check=True)
    return home / "bin" / "python"


@pytest.mark.slow
def test_an_openenv_server_is_played_by_text_and_by_its_fields(openenv_server: str, started: Start) -> None:
    process = started(f"openenv:{openenv_server}?show=text")
    assert process.version.startswith("1-Counting-")
    session = Session(process, Task("o", process.version, TRAIN, 1))
    assert (session.observation.text, session.tools) == ("count to 3", ())
    assert [session.say(word) for word in "123"] == ["right"] * 3
    assert (session.done, session.reward) == (True, 1.0)
    session = Session(process, Task("o", process.version, TRAIN, 1))
    assert "VALIDATION_ERROR" in session.call("act", {"wrod": "1"})
    assert session.call("act", {"word": "1"}) == "right"
    with pytest.raises(EnvironmentRaisedError, match="the OpenEnv server says: broken"):
        session.call("act", {"word": "break"})


@pytest.mark.slow
def test_an_openenv_server_that_is_not_there_is_one_sentence(started: Start) -> None:
    with pytest.raises(EnvironmentRaisedError, match="Connection refused"):
        started("openenv:http://127.0.0.1:9")


COUNTING = """
import gymnasium
class Counting(gymnasium.Env):
    metadata = {"render_modes": ["ansi"]}
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Discrete(100)
    def __init__(self, render_mode=None, goal=3):
        self.goal = goal
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = int(self.np_random.integers(50))
        self.goal_at = self.count + self.goal
        return self.count, {}
    def step(self, action):
        self.count += int(action)
        return self.count, float(self.count == self.goal_at), self.count == self.goal_at, False, {}
    def render(self):
        return f"count {self.count}"
gymnasium.register(NAME, Counting)
"""


@pytest.mark.parametrize("name", ["Counting-v0", "acme/Counting-v0"])
@pytest.mark.slow
def test_an_environment_that_a_module_registers_is_played(name: str, started: Start, tmp_path: Path) -> None:
    started("gymnasium:Taxi-v4").close()  # installs it
    versions = set()
    for comment in ("", "# changed\n"):
        (tmp_path / "acme_counting.py").write_text(COUNTING.replace("NAME", repr(name)) + comment)
        launch = launch_of(EnvironmentSpec.parse(f"gymnasium:acme_counting:{name}?goal=2"), FOLDER)
        process = EnvironmentProcess(replace(launch, path=(str(tmp_path),)), Limits())
        session = Session(process, Task("c", process.version, HELD_OUT, 1))
        assert session.observation.text.startswith("count ")
        assert [session.say(action)[:6] for action in "101"] == ["count "] * 3
        assert (session.done, session.reward) == (True, 1.0)
        versions.add(process.version)
        process.close()
    assert len(versions) == 2
    assert all(version.startswith("2-gymnasium-") for version in versions)


def test_every_adapter_is_tried_here() -> None:
    tried = {case.partition(":")[0] for case in CASES} | {"gymnasium", "skyrl-gym", "openenv"}
    tried |= {name for name in KNOWN if any(Path(__file__).parent.glob(f"test_{name}*.py"))}
    assert set(KNOWN) - {"mcp", "code"} == tried
