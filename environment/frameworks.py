"""Make the environments of ``make frameworks``: three of Python, whose lists exclude each other, and Node's.

    .venv/bin/python environment/frameworks.py

Each is made once, and again if its list changes or its making was interrupted. ``install.py`` has to have run before.
Without npm, or if it fails, Node's packages are left out, and the next run tries again. Standard library only.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

import install
import install_plan as plan

ROOT = install.ROOT
ENVIRONMENTS = {
    ".venv-frameworks": "environment/frameworks-py311.txt",
    ".venv-frameworks-older": "environment/frameworks-older-py311.txt",
    ".venv-frameworks-beside": "environment/frameworks-beside-py311.txt",
}
NODE = ".venv-frameworks-node"
NODE_LIST = "environment/frameworks-node.txt"
STAMP = "installed"
_CLAUDE_CODE = "@anthropic-ai/claude-code"
"""Its package fetches the program itself in its install script, which npm may have been told not to run."""


def main() -> int:
    for folder, listed in ENVIRONMENTS.items():
        python_environment(ROOT / folder, ROOT / listed)
    node_packages(ROOT / NODE, ROOT / NODE_LIST)
    return 0


def python_environment(folder: Path, listed: Path) -> None:
    """Install a pinned list into an environment of its own.

    Raises:
        SetupError: a command failed.
    """
    if not is_current(folder, listed):
        install.say(f"{listed.relative_to(ROOT)}:")
        # The lists are complete; they were made one by one, and some packages require older versions than they work
        # with.
        install.make_environment(folder, listed, "--no-deps")
        stamp(folder, listed)


def node_packages(folder: Path, listed: Path) -> None:
    """Install Node's packages; if that cannot be done, say so and leave them out."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if is_current(folder, listed):
        return
    if npm is None or node is None:
        missing = " and ".join(name for name, path in (("node", node), ("npm", npm)) if path is None)
        install.say(
            f"there is no {missing} on PATH: Node's rows and Claude Code's will say that they are not installed"
        )
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    packages = listed.read_text(encoding="utf-8").split()
    try:
        with install.step(f"{listed.relative_to(ROOT)} into {folder.name}"):
            install.run([npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), *packages], {})
            script = folder / "node_modules" / _CLAUDE_CODE / "install.cjs"
            if script.is_file():
                install.run([node, str(script)], {})
    except (plan.SetupError, OSError) as error:
        install.say(f"npm failed, so Node's rows and Claude Code's are left out: {error}")
        shutil.rmtree(folder, ignore_errors=True)  # half of them would look installed
        return
    stamp(folder, listed)


def is_current(folder: Path, listed: Path) -> bool:
    try:
        return (folder / STAMP).read_text(encoding="utf-8") == fingerprint(listed)
    except OSError:
        return False


def stamp(folder: Path, listed: Path) -> None:
    (folder / STAMP).write_text(fingerprint(listed), encoding="utf-8")


def fingerprint(listed: Path) -> str:
    """Return a digest of the list and of its location: an environment that was moved does not start."""
    return hashlib.sha256(listed.read_bytes() + str(ROOT).encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(install.reported(main))
