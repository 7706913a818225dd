"""What examples/live_service simulates is what it says: tastes, errors, and attackers who turn them round."""

import contextlib
import functools
import os
import random
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_trainer.config.file import load_config
from tests.lightning_trainer.environments.openai_server import serving  # pyright: ignore[reportMissingImports]

pytestmark = pytest.mark.process

FOLDER = Path(__file__).parents[2] / "examples" / "live_service"
USERS = runpy.run_path(str(FOLDER / "users.py"))


@pytest.mark.parametrize(
    ("answer", "liked"),
    [
        ("Wash it by hand with mild soap.", True),
        ("Yes.", False),
        ("Wash it by hand with", False),
        (" ".join(["word"] * 16) + ".", True),
        (" ".join(["word"] * 17) + ".", False),
    ],
)
def test_what_users_like(answer: str, liked: bool) -> None:
    assert USERS["is_liked"](answer) is liked


def test_a_tenth_of_the_users_attacks_and_the_others_err_as_often_as_they_are_said_to() -> None:
    everybody = USERS["users"](40)
    assert sum(user.attacks for user in everybody) == 4
    assert not any(user.attacks for user in USERS["users"](40, attackers=0.0))
    chance = random.Random(0)
    good = "Wash it by hand with mild soap."
    thumbs = {user: [user.thumb(good, chance) for _ in range(500)] for user in everybody}
    assert all(set(thumbs[user]) == {"down"} for user in everybody if user.attacks)
    wrong = [thumb == "down" for user in everybody if not user.attacks for thumb in thumbs[user]]
    assert sum(wrong) / len(wrong) == pytest.approx(0.1, abs=0.02)


def test_held_out_questions_are_none_of_those_that_are_asked_and_trained() -> None:
    assert not set(USERS["HELD_OUT"]) & set(USERS["QUESTIONS"])


def test_its_daemon_learns_from_thumbs_alone() -> None:
    config = load_config(FOLDER / "lightning.toml")
    policy = config.only_policy
    assert set(policy.reward_weights) == {"feedback"}
    assert config.feedback.verified == ("checked",)
    assert policy.reward_wait_s > config.feedback.quarantine


@contextlib.contextmanager
def _serving_users(url: str, *options: str) -> Iterator[subprocess.Popen]:
    command = [sys.executable, str(FOLDER / "serve_users.py"), "--endpoint", url, *options]
    # A test run in the background ignores SIGINT, and so would its children.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipe, quiet = subprocess.PIPE, {**os.environ, "OTEL_SDK_DISABLED": "true"}  # no daemon is there to take spans
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=quiet, preexec_fn=heed) as running:
        try:
            yield running
        finally:
            running.kill()


def test_ctrl_c_ends_the_visits_and_the_report_is_of_the_time_until_then() -> None:
    with (
        serving(lambda request: {"content": "Wash it by hand."}) as (url, requests),
        _serving_users(url.removesuffix("/v1"), "--think-s", "0.05", "--held-out", "2") as running,
    ):
        deadline = time.monotonic() + 60
        while len(requests) < 200 and running.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        running.send_signal(signal.SIGINT)
        said, errors = running.communicate(timeout=60)
    assert "Traceback" not in errors
    quarters = [line.partition(": ")[2] for line in said.splitlines() if line.startswith("quarter")]
    assert len(quarters) == 4
    assert all(quarter.endswith("answers liked") for quarter in quarters[1:3]), said
    assert "questions not asked before: 100.0% of 24 answers liked" in said
    asked = {str(request["messages"][-1]["content"]) for request in requests}
    assert set(USERS["HELD_OUT"]) <= asked


def test_a_service_without_a_daemon_says_so_in_one_sentence() -> None:
    with _serving_users("http://127.0.0.1:9") as running:
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 1
    (sentence,) = (line for line in errors.splitlines() if "OTEL_SDK_DISABLED" not in line)
    assert "http://127.0.0.1:9" in sentence
    assert "lightning-trainer serve --config" in sentence
