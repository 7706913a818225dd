"""One example trained with one seed, as its README says: a daemon and the example's own program, in a folder."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.common.daemons import example_configuration, running_daemon
from benchmarks.common.processes import ROOT
from benchmarks.proof.examples import Example
from lightning_trainer.config.file import load_config

_DATA = re.compile(r'^data = "([^"]*)"', re.MULTILINE)
_SCHEDULED = re.compile(r"total_steps = \d+")


def train(name: str, example: Example, folder: Path, *, seed: int, steps: int) -> float:
    """Train, or continue a run that was interrupted, and return the minutes that it took altogether.

    Raises:
        RuntimeError: the example's program failed; the message names its log.
    """
    folder.mkdir(parents=True, exist_ok=True)
    source = ROOT / "examples" / name
    configuration = folder / "lightning.toml"
    configuration.write_text(configured(name, seed, steps))
    for environment in example.environments:
        install = [sys.executable, "-m", "lightning_trainer", "environments", "install", environment]
        subprocess.run(install, check=True, cwd=ROOT)
    policy = load_config(configuration).policy[0].name
    log_path = folder / "train.log"
    with _minutes(folder / "minutes") as spent, running_daemon(folder, policy), log_path.open("ab") as log:
        command = [str(example.python), str(source / "train.py"), "--seed", str(seed)]
        command += ["--steps", str(steps), "--heldout", str(example.heldout)]
        ended = subprocess.run(command, stdout=log, stderr=log, cwd=ROOT, env=dict(os.environ))
        if ended.returncode:
            raise RuntimeError(f"{command[1]} ended with {ended.returncode}; its log: {log_path}")
    return sum(spent)


@contextmanager
def _minutes(path: Path) -> Iterator[list[float]]:
    """Record how long each try took; yield the minutes of earlier tries, to which this one's are added at the end."""
    spent = [float(line) for line in path.read_text().split()] if path.exists() else []
    began = time.monotonic()
    try:
        yield spent
    finally:
        spent.append((time.monotonic() - began) / 60)
        path.write_text("\n".join(map(str, spent)) + "\n")


def configured(name: str, seed: int, steps: int) -> str:
    """Return an example's configuration with a port, a state folder, a seed and a number of steps of this run's own.

    Files that it names stay in the example's folder.
    """
    source, text = ROOT / "examples" / name, example_configuration(name)
    text = _DATA.sub(lambda found: f'data = "{(source / found[1]).resolve()}"', text)
    text = text.replace("\n[[policy]]", f"\n[training]\nseed = {seed}\n\n[[policy]]", 1)
    return _SCHEDULED.sub(f"total_steps = {steps}", text)
