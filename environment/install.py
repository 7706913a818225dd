"""Make ``.venv``: Python 3.11 with the pinned CPU set and this project, editable. Does nothing if nothing changed.

    python3 environment/install.py

uv does the work; if there is none on PATH, pip installs it into ``.venv`` first. ``install_plan.py`` decides; this file
looks at the machine and runs commands. Standard library only, Python 3.9 and newer.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import install_plan as plan

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "lightning-setup.json"
HEARTBEAT_S = 30.0
LINES_SHOWN_OF_A_FAILURE = 12


def main() -> int:
    started = time.monotonic()
    if look()[0] is plan.Action.NOTHING:
        say(f".venv is up to date ({time.monotonic() - started:.2f} s)")
        return 0
    refusal = plan.unsupported_platform(platform.system(), platform.machine(), platform.libc_ver()[0])
    if refusal:
        raise plan.SetupError(refusal)
    with one_at_a_time():
        install(started)
    return 0


def reported(work: Callable[[], int]) -> int:
    """Do some work and return its exit status; print a failure as a sentence."""
    try:
        return work()
    except plan.SetupError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("set-up interrupted; run it again, what was downloaded is kept", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"set-up failed: {error}. {plan.mend_for(str(error))}", file=sys.stderr)
    return 1


def install(started: float) -> None:
    action, reason = look()
    if action is plan.Action.NOTHING:  # another set-up finished it while this one waited
        return
    say(f"{action.value} .venv: {reason}")
    if action is plan.Action.CREATE:
        create_environment()
    stamp(complete=False)
    bring_uv()
    pinned = requirements()
    install_list(VENV, pinned, "--no-deps", "--editable", str(ROOT), again=action is plan.Action.REPAIR)
    stamp(complete=True)
    say(f"done: {len(pinned)} packages and this project, {time.monotonic() - started:.0f} s")


# --- what is there


def look() -> tuple[plan.Action, str]:
    """Look at ``.venv`` without starting a process: the no-op has to be instant."""
    try:
        found = json.loads(STAMP.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    site_packages = VENV / "lib" / f"python{plan.PYTHON}" / "site-packages"
    environment = plan.Environment(
        exists=VENV.is_dir() or VENV.is_symlink(),
        python=python_version(),
        stamp=found if isinstance(found, dict) and "complete" in found else None,
        missing=plan.missing_requirements(requirements(), os.listdir(site_packages) if site_packages.is_dir() else ()),
    )
    return plan.plan_action(environment, fingerprint(), str(ROOT))


def requirements() -> list[str]:
    return plan.parse_requirements((ROOT / plan.REQUIREMENTS).read_text(encoding="utf-8"))


def fingerprint() -> str:
    listed, pyproject = (ROOT / plan.REQUIREMENTS).read_bytes(), (ROOT / "pyproject.toml").read_bytes()
    return plan.fingerprint(listed, pyproject, python_version())


def python_version() -> str | None:
    """Return the version that ``.venv`` was made with; None if its interpreter is gone."""
    with suppress(OSError):
        for line in (VENV / "pyvenv.cfg").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition("=")
            if key.strip() in ("version", "version_info") and os.access(VENV / "bin" / "python", os.X_OK):
                return value.strip()
    return None


def stamp(*, complete: bool) -> None:
    """Write the stamp in one move, since a torn stamp would be read as none."""
    partial = STAMP.with_suffix(".partial")
    partial.write_text(json.dumps({"complete": complete, "fingerprint": fingerprint(), "root": str(ROOT)}))
    os.replace(partial, STAMP)


def uv_command(*places: str) -> str | None:
    """Return the first uv that runs (a version manager's shim may exist and refuse to); None if there is none."""
    found = map(shutil.which, places or ("uv", str(VENV / "bin" / "uv")))
    return next((path for path in found if path and output_of([path, "--version"]) is not None), None)


def uv_environment() -> dict[str, str]:
    """Return what uv has to be told of pip's configuration, without links to missing folders, at which uv stops."""
    configs = (output_of([*pip, "config", "list"]) for pip in (["pip3"], ["pip"], [sys.executable, "-m", "pip"]))
    config = next((config for config in configs if config is not None), "")
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "uv" / "uv.toml"
    has_file = "UV_CONFIG_FILE" in os.environ or user.is_file() or Path("/etc/uv/uv.toml").is_file()
    additions = plan.uv_environment(config, os.environ, uv_has_config_file=has_file)
    links = additions.pop("UV_FIND_LINKS", "").split(",")
    there = [link for link in links if link and ("://" in link or Path(link).expanduser().exists())]
    return {**additions, "UV_FIND_LINKS": ",".join(there)} if there else additions


def python_to_build_with() -> str:
    """Return a Python 3.11 that runs.

    Raises:
        SetupError: there is none.
    """
    probe = "import sys; print('%d.%d' % sys.version_info[:2], getattr(sys, '_base_executable', sys.executable))"
    for candidate in (sys.executable, f"python{plan.PYTHON}", "python3", "python"):
        version, _, path = (output_of([candidate, "-c", probe]) or "").strip().partition(" ")
        if version == plan.PYTHON and Path(path).exists() and VENV not in Path(path).parents:
            return path
    raise plan.SetupError(
        f"neither uv nor Python {plan.PYTHON} is on PATH (this is Python {platform.python_version()}): install one of "
        f"them (Debian, Ubuntu: apt-get install python{plan.PYTHON} python{plan.PYTHON}-venv) and run it again."
    )


# --- what is done


def create_environment() -> None:
    uv = uv_command("uv")
    python = plan.PYTHON if uv else python_to_build_with()  # before anything is removed
    if VENV.is_symlink():
        VENV.unlink()
    shutil.rmtree(VENV, ignore_errors=True)
    with step(f"Python {plan.PYTHON} environment, with {'uv' if uv else python}"):
        run([uv, "venv", "--python", python, str(VENV)] if uv else [python, "-m", "venv", str(VENV)])


def bring_uv() -> None:
    """Install uv into ``.venv`` if there is none on PATH."""
    if uv_command() is None:
        python = str(VENV / "bin" / "python")
        with step("uv into .venv (there is none on PATH)"):
            if output_of([python, "-m", "pip", "--version"]) is None:  # made by a uv that is gone
                run([python, "-m", "ensurepip"])
            run([python, "-m", "pip", "install", "--no-input", "uv"], {"PIP_USER": "0"})


def make_environment(folder: Path, listed: Path, *options: str) -> None:
    """Make another environment, from a list that may ask for the CPU build of torch.

    Raises:
        SetupError: a command failed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    bring_uv()
    run([str(uv_command()), "venv", "--python", sys.executable, str(folder)])
    install_list(folder, plan.parse_requirements(listed.read_text(encoding="utf-8")), *options)


def install_list(venv: Path, wanted: Sequence[str], *options: str, again: bool = False) -> None:
    """Install requirements with uv, which skips those that are installed; ``again``: install those too."""
    additions = uv_environment()
    uv = [str(uv_command()), "pip", "install", "--python", str(venv / "bin" / "python")]
    uv += ["--reinstall"] if again else []
    torch = plan.torch_requirement(wanted)
    if torch is not None:
        install_torch([*uv, "--no-deps", torch], additions, torch)
    others = [requirement for requirement in wanted if requirement != torch]
    with tempfile.TemporaryDirectory() as folder, step(f"{len(others)} packages into {venv.name}"):
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(others) + "\n", encoding="utf-8")
        run([*uv, *options, "--requirement", str(listed)], additions)


def install_torch(command: Sequence[str], additions: Mapping[str, str], torch: str) -> None:
    """Install torch from the first place that has it: it is the only package whose CPU build PyPI does not have."""
    mirror = os.environ.get(plan.TORCH_INDEX_VARIABLE)
    places = [("the configured indexes", None), ("PyTorch's CPU index", plan.PYTORCH_CPU_INDEX)]
    for place, index in [(plan.TORCH_INDEX_VARIABLE, mirror)] if mirror else places:
        try:
            with step(f"{torch} from {place}"):
                run([*command, *(["--index-url", index] if index else [])], additions)
            return
        except plan.SetupError as error:
            if index is not None:
                raise plan.SetupError(
                    f"{error}\nThe wheel may also come from elsewhere: set {plan.TORCH_INDEX_VARIABLE} to a mirror of "
                    "PyTorch's CPU index, or UV_FIND_LINKS to a folder that holds it."
                ) from None
            say("  not there: trying the next place")


# --- running commands


def output_of(command: Sequence[str]) -> str | None:
    """Return what a command that ends soon prints; None if it cannot be run or fails."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def run(command: Sequence[str], additions: Mapping[str, str] = {}) -> None:
    """Run a command quietly, printing a sign of life now and then.

    Raises:
        SetupError: it failed; the message has the command, the end of what it printed, and what to do.
    """
    with tempfile.TemporaryFile() as printed:
        started = time.monotonic()
        process = subprocess.Popen(
            command, stdout=printed, stderr=subprocess.STDOUT, env={**os.environ, **additions}, cwd=ROOT
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(timeout=HEARTBEAT_S)
                    break
                say(f"  still at it, {time.monotonic() - started:.0f} s")
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if code:
            printed.seek(0)
            output = printed.read().decode(errors="replace")
            shown = "\n".join("    " + line for line in output.strip().splitlines()[-LINES_SHOWN_OF_A_FAILURE:])
            settings = [f"{name}={shlex.quote(value)}" for name, value in additions.items()]
            line = " ".join([*settings, *(shlex.quote(str(word)) for word in command)])
            raise plan.SetupError(
                plan.redacted(f"exit status {code} of\n  {line}\n{shown}\n{plan.mend_for(output, code)}")
            )


@contextmanager
def step(title: str) -> Iterator[None]:
    started = time.monotonic()
    say(f"{title} ...")
    yield
    say(f"  {time.monotonic() - started:.1f} s")


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Hold a lock on the list of packages: two simultaneous set-ups would break each other's files."""
    import fcntl  # not on every platform on which this file is started; those were refused before

    with open(ROOT / plan.REQUIREMENTS, "rb") as listed:
        try:
            fcntl.flock(listed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is at work in this folder: waiting for it")
            fcntl.flock(listed, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    with suppress(BrokenPipeError):  # the reader of the output has left; the work continues
        print(f"set-up: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(reported(main))
