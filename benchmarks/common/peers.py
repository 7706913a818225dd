"""Environments of the projects that ours is measured against, made on demand: ``.bench-peers`` from ``peers.txt``.

They are installed as the project's own environment is (``environment/install.py``), from the user's configured index.
"""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.common.processes import ROOT

_VENV = ROOT / ".bench-peers"
_LIST = Path(__file__).with_name("peers.txt")


def peers_python(listing: Path = _LIST, venv: Path = _VENV) -> tuple[Path | None, str]:
    """Return the interpreter, or None and one sentence that says why there is none."""
    python, stamp = venv / "bin" / "python", venv / "peers.sha256"
    wanted = hashlib.sha256(listing.read_bytes()).hexdigest()
    if stamp.exists() and stamp.read_text() == wanted and python.exists():
        return python, ""
    sys.path.insert(0, str(ROOT / "environment"))
    import install  # pyright: ignore[reportMissingImports]
    import install_plan as plan  # pyright: ignore[reportMissingImports]

    try:
        install.make_environment(venv, listing)
    except (plan.SetupError, OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(venv, ignore_errors=True)
        return None, f"the peers of {listing.name} could not be installed: {str(error).splitlines()[0]}"
    stamp.write_text(wanted)
    return python, ""


def trl_python() -> tuple[Path | None, str]:
    """Return the interpreter of TRL's environment, as ``peers_python`` does."""
    return peers_python(_LIST.with_name("trl.txt"), ROOT / ".bench-peer-trl")
