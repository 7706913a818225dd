"""Tasks and demonstrations that are made from a server's list of tools alone.

    python examples/tools/tasks.py examples/tools/demonstrations.jsonl
    python examples/tools/tasks.py demonstrations.jsonl -- python my_server.py

``lightning-trainer scenarios mcp`` calls the tools, and asks for what they answered; a digest of each task decides
whether it is held out. The calls that training tasks were made from are the demonstrations: that file is there already
for the server of this example, and this writes it anew.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_trainer.rollouts.task_file import FileTask, read_tasks

SERVER = [sys.executable, str(Path(__file__).with_name("server.py"))]
DIFFICULTY = "1-2"
"""Calls that a task takes."""
_TRAINING = 400
_HELD_OUT = 200
_DEMONSTRATED = 48
_CALLS = 500


@dataclass(frozen=True)
class Tasks:
    train: tuple[FileTask, ...]
    held_out: tuple[FileTask, ...]


def made(server: Sequence[str], demonstrations: Path | None = None) -> Tasks:
    """Make tasks of a server.

    Args:
        server: the command that starts it.
        demonstrations: the file that they are written to, if they are.

    Raises:
        subprocess.CalledProcessError: nothing can be made of it; why is on standard error.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "lightning_trainer", "scenarios", "mcp", "--difficulty", DIFFICULTY]
        command += ["--count", str(_TRAINING), "--held-out", str(_HELD_OUT), "--budget", str(_CALLS)]
        command += ["--demonstrations", str(_DEMONSTRATED)]
        subprocess.run([*command, "--out", folder, "--", *server], check=True)
        if demonstrations is not None:
            shutil.copyfile(Path(folder, "demonstrations.jsonl"), demonstrations)
        return Tasks(*(read_tasks(Path(folder, f"{split}.jsonl")).tasks for split in ("train", "held-out")))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write the demonstrations of a server's tasks.")
    parser.add_argument("file", type=Path)
    parser.add_argument("server", nargs="*", default=SERVER, help="command of an MCP server")
    options = parser.parse_args()
    made(options.server, options.file)
