"""Environments of the projects that ours is measured against, made on demand: ``.bench-peers`` from ``peers.txt``.

Installed as the project's own environment is (``environment/install.py``): with uv where there is one, else with pip,
from wherever the user's configuration says.
"""

import hashlib
import os
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

    shutil.rmtree(venv, ignore_errors=True)
    uv = install.uv_command("uv")
    additions = plan.uv_environment(install.pip_settings(), os.environ, uv_has_config_file=install.uv_has_config_file())
    try:
        if uv is not None:
            install.run([*uv, "venv", "--quiet", "--python", sys.executable, str(venv)], {})
            installer = [*uv, "pip", "install", "--quiet", "--python", str(python)]
        else:
            install.run([sys.executable, "-m", "venv", str(venv)], {})
            installer, additions = [str(python), "-m", "pip", "install", "--quiet", "--no-input"], {}
        # torch first: it is the one package whose CPU build is not where the others are.
        if (torch := plan.torch_requirement(listing.read_text().splitlines())) is not None:
            install.install_torch(installer, additions, torch, install.pip_settings())
        install.run([*installer, "-r", str(listing)], additions)
    except (plan.SetupError, OSError, subprocess.SubprocessError) as error:
        shutil.rmtree(venv, ignore_errors=True)
        return None, f"the peers of {listing.name} could not be installed: {str(error).splitlines()[0]}"
    stamp.write_text(wanted)
    return python, ""


def trl_python() -> tuple[Path | None, str]:
    """Return the interpreter of TRL's environment, as ``peers_python`` does."""
    return peers_python(_LIST.with_name("trl.txt"), ROOT / ".bench-peer-trl")
