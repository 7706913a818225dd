"""What examples/game shows the model are moves that do not end in a hole, on maps as the environment draws them."""

import runpy
from pathlib import Path

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "game" / "train.py"))
STEPS = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}


def test_every_example_is_a_good_move() -> None:
    shown = EXAMPLE["EXAMPLES"]
    for asked, answered in zip(shown[::2], shown[1::2], strict=True):
        board = [line.split() for line in asked["content"].splitlines()]
        ((row, column),) = [(r, c) for r in range(3) for c in range(3) if board[r][c] == "P"]
        down, right = STEPS[answered["content"]]
        assert board[row + down][column + right] in ("_", "G")
        assert {len(line) for line in board} == {3}
    assert {message["content"] for message in shown[1::2]} == {"down", "right"}


def test_it_plays_what_is_documented() -> None:
    assert EXAMPLE["ENVIRONMENT"].startswith("frozenlake:3x3?")
