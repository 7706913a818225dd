"""What examples/live_service simulates is what it says: tastes, errors, and attackers who turn them round."""

import random
import runpy
from pathlib import Path

import pytest

from lightning_trainer.config.file import load_config

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
    chance = random.Random(0)
    good = "Wash it by hand with mild soap."
    thumbs = {user: [user.thumb(good, chance) for _ in range(500)] for user in everybody}
    assert all(set(thumbs[user]) == {"down"} for user in everybody if user.attacks)
    wrong = [thumb == "down" for user in everybody if not user.attacks for thumb in thumbs[user]]
    assert sum(wrong) / len(wrong) == pytest.approx(0.1, abs=0.02)


def test_its_daemon_learns_from_thumbs_alone() -> None:
    config = load_config(FOLDER / "lightning.toml")
    policy = config.only_policy
    assert set(policy.reward_weights) == {"feedback"}
    assert config.feedback.verified == ("checked",)
    assert policy.reward_wait_s > config.feedback.quarantine
