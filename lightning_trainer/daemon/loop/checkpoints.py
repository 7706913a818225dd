"""Where a policy's checkpoints are: ``step-00000010`` and so on, complete or absent.

The trainer writes one under a temporary name and renames it, so one with a final name is complete. After a rollback
there may be checkpoints of steps that the current weights do not descend from: training never continues from those.
"""

import re
import shutil
from collections.abc import Collection
from pathlib import Path

_NAME = re.compile(r"step-(\d{8})")


class CheckpointFolder:
    """The checkpoints of one policy, newest last."""

    def __init__(self, root: Path, *, keep: int) -> None:
        self.root = root
        self._keep = keep

    def path(self, step: int) -> Path:
        """Return where a step's checkpoint is, or would be."""
        return self.root / f"step-{step:08d}"

    def steps(self) -> list[int]:
        """Return the steps that have a complete checkpoint, ascending."""
        if not self.root.is_dir():
            return []
        return sorted(int(match[1]) for entry in self.root.iterdir() if (match := _NAME.fullmatch(entry.name)))

    def latest(self, lineage: Collection[int]) -> int | None:
        """Return the newest checkpoint of these versions."""
        return max((step for step in self.steps() if step in lineage), default=None)

    def remove(self, step: int) -> None:
        """Remove a step's checkpoint, if there is one."""
        shutil.rmtree(self.path(step), ignore_errors=True)

    def prune(self, lineage: Collection[int]) -> None:
        """Remove all but the newest ``keep`` of these versions, and whatever an interrupted save left."""
        usable = [step for step in self.steps() if step in lineage]
        kept = {self.path(step).name for step in usable[-self._keep :]}
        for entry in self.root.iterdir() if self.root.is_dir() else ():
            if entry.is_dir() and entry.name not in kept:
                shutil.rmtree(entry, ignore_errors=True)


def oldest_checkpoints(root: Path) -> dict[str, int]:
    """Return the step of every policy's oldest checkpoint, by the policy's name; policies without one are left out.

    Args:
        root: the folder that holds all policies' folders.
    """
    folders = [entry for entry in root.iterdir() if entry.is_dir()] if root.is_dir() else []
    steps = {folder.name: CheckpointFolder(folder, keep=1).steps() for folder in folders}
    return {policy: found[0] for policy, found in steps.items() if found}
