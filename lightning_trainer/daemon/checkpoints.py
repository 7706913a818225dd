"""Where a policy's checkpoints are: ``step-00000010`` and so on, complete or absent.

The trainer writes one under a temporary name and renames it, so whatever carries a final name is whole.
"""

import re
import shutil
from pathlib import Path

_NAME = re.compile(r"step-(\d{8})")


class CheckpointFolder:
    """The checkpoints of one policy, newest last."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self.root = root
        self._keep = keep

    def path(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Steps that have a whole checkpoint, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.root.iterdir() if (match := _NAME.fullmatch(entry.name)))

    def latest(self) -> int | None:
        steps = self.steps()
        return steps[-1] if steps else None

    def prune(self) -> None:
        """Remove all but the newest ``keep``, and whatever an interrupted save left."""
        kept = {self.path(step).name for step in self.steps()[-self._keep :]}
        for entry in self.root.iterdir() if self.root.is_dir() else ():
            if entry.is_dir() and entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)
