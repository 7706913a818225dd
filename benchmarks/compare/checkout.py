"""An earlier commit's files in a folder of their own, and a benchmark run on the files of a folder."""

import json
import shlex
import subprocess
import sysconfig
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

Figures = dict[tuple[str, str, str], float]
"""By section, what was measured, and unit."""


class CannotCompare(Exception):
    """There is nothing to compare; the message says in a sentence why."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A commit's files, and a Python in which that commit is installed."""

    folder: Path
    python: Path


@contextmanager
def checkout(repository: Path, commit: str) -> Iterator[Checkout]:
    """Yield a commit in a folder of its own, which is removed afterwards.

    Its environment has this one's packages and that commit's code, in every process that a benchmark starts.

    Raises:
        CannotCompare: the repository has no such commit.
    """
    with TemporaryDirectory(prefix="lightning-compare-") as temporary:
        folder = Path(temporary) / "before"
        added = _git(repository, "worktree", "add", "--detach", str(folder), commit)
        if added.returncode:
            raise CannotCompare(f"{commit!r} cannot be checked out: {added.stderr.strip().splitlines()[-1]}")
        try:
            yield Checkout(folder, _environment(folder))
        finally:
            _git(repository, "worktree", "remove", "--force", str(folder))


def _environment(folder: Path) -> Path:
    """Make an environment in which ``folder``'s code comes before all other packages; return its Python."""
    made = folder / ".venv"
    venv.create(made, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)}))
    # Folders in a .pth file are searched, but their own .pth files, which name this checkout, are not read.
    paths = [*(folder / part for part in ("", "instrumentation", "adapters")), sysconfig.get_path("purelib")]
    (packages / "compared.pth").write_text("".join(f"{path}\n" for path in paths))
    command = made / "bin" / "lightning-trainer"
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(str(made / "bin" / "python"))} -m lightning_trainer "$@"\n')
    command.chmod(0o755)
    return made / "bin" / "python"


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", "-C", str(repository), *arguments], capture_output=True, text=True)


def figures(of: Checkout, benchmark: str, arguments: Sequence[str]) -> Figures:
    """Run a checkout's own benchmark on its own code and return what it measured.

    Benchmarks were programs (``benchmarks/capture.py``) before they became packages.

    Raises:
        CannotCompare: the folder has no such benchmark, or it ended without figures.
    """
    folder = of.folder
    package, program = (folder / "benchmarks" / benchmark / "__main__.py", folder / "benchmarks" / f"{benchmark}.py")
    if package.exists():
        started = ["-m", f"benchmarks.{benchmark}"]
    elif program.exists():
        started = [str(program)]
    else:
        raise CannotCompare(f"there is no benchmarks.{benchmark} in {folder}; take one that both commits have")
    with TemporaryDirectory(prefix="lightning-compare-") as temporary:
        written = Path(temporary) / "figures.json"
        command = [str(of.python), *started, *arguments, "--json", str(written)]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        if not written.exists():
            said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise CannotCompare(f"benchmarks.{benchmark} in {folder} ended without figures: {said[-1]}")
        document = json.loads(written.read_text())
    if not isinstance(document, dict) or "rows" not in document:
        raise CannotCompare(f"benchmarks.{benchmark} in {folder} compares others; it prints no figures of one commit")
    return {
        (row["section"], row["what"], row.get("unit", "")): float(row["figure"])
        for row in document["rows"]
        if row.get("figure") is not None
    }
