"""Make ``.venv``: Python 3.11 with the pinned CPU set and this project, editable. Does nothing when nothing changed.

    python3 environment/install.py

Works with uv, without it (uv is then installed into ``.venv``; where that fails, pip does the work), with packages that
only pip is configured for, and with the torch CPU wheel at hand or not. Decisions are in ``install_plan.py``; this file
looks at the machine and runs commands. Standard library only, Python 3.9 and newer.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import install_plan as plan

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
VENV_PYTHON = VENV / "bin" / "python"
HEARTBEAT_S = 30.0
LINES_SHOWN_OF_A_FAILURE = 12


def main() -> int:
    started = time.monotonic()
    try:
        if environment_is_current():
            say(f".venv is up to date ({time.monotonic() - started:.2f} s)")
            return 0
        refusal = plan.unsupported_platform(platform.system(), platform.machine(), platform.libc_ver()[0])
        if refusal:
            raise plan.SetupError(refusal)
        with one_at_a_time():
            install(started)
    except plan.SetupError as error:
        print(f"set-up failed: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("set-up interrupted; run it again, what was downloaded is kept", file=sys.stderr)
        return 130
    except OSError as error:
        print(f"set-up failed: {error}. {plan.mend_for(str(error))}", file=sys.stderr)
        return 1
    return 0


def environment_is_current() -> bool:
    return plan.plan_action(look_at_environment(), current_fingerprint(), str(ROOT))[0] is plan.Action.NOTHING


def install(started: float) -> None:
    action, reason = plan.plan_action(look_at_environment(), current_fingerprint(), str(ROOT))
    if action is plan.Action.NOTHING:  # another set-up finished it while this one waited
        return
    say(f"{action.value} .venv: {reason}")
    requirements = plan.parse_requirements((ROOT / plan.REQUIREMENTS).read_text(encoding="utf-8"))
    uv = uv_command("uv")
    if action.makes_anew:
        create_environment(uv)
    stamp(plan.Progress.CREATING if action.makes_anew else plan.Progress.UPDATING)
    pip = pip_settings()
    uv = uv or bootstrap_uv()
    if uv is None:
        installer = [str(VENV_PYTHON), "-m", "pip", "install", "--no-input", "--no-compile"]
        again, additions = "--force-reinstall", {"PIP_USER": "0"}
    else:
        installer = [*uv, "pip", "install", "--python", str(VENV_PYTHON)]
        again, additions = (
            "--reinstall",
            plan.uv_environment(pip, os.environ, uv_has_config_file=uv_has_config_file()),
        )
    if action is plan.Action.REPAIR:
        installer.append(again)
        wanted = requirements
    else:
        wanted = plan.missing_requirements(requirements, names_in_site_packages())
    install_packages(installer, additions, wanted, pip)
    absent = plan.missing_requirements(requirements, names_in_site_packages())
    if absent:
        raise plan.SetupError(
            f"{len(absent)} of {len(requirements)} packages are not installed although the installer succeeded "
            f"({', '.join(absent[:3])}): remove .venv and run it again."
        )
    stamp(plan.Progress.COMPLETE)
    say(f"done: {len(requirements)} packages and this project, {time.monotonic() - started:.0f} s")


# --- what is there


def look_at_environment() -> plan.Environment:
    """Read ``.venv`` without starting a process: the no-op has to be instant."""
    exists = VENV.is_dir() or VENV.is_symlink()
    requirements = plan.parse_requirements((ROOT / plan.REQUIREMENTS).read_text(encoding="utf-8"))
    try:
        found = plan.Stamp.from_json((VENV / plan.STAMP).read_text(encoding="utf-8"))
    except OSError:
        found = None
    missing = plan.missing_requirements(requirements, names_in_site_packages()) if exists else ()
    return plan.Environment(exists, venv_python_version(), found, missing)


def venv_python_version() -> str | None:
    """Version that ``.venv`` was made with, None when its interpreter is gone."""
    if not os.access(VENV_PYTHON, os.X_OK):
        return None
    try:
        settings = (VENV / "pyvenv.cfg").read_text(encoding="utf-8")
    except OSError:
        return None
    for line in settings.splitlines():
        key, _, value = line.partition("=")
        if key.strip() in ("version", "version_info"):
            return value.strip()
    return None


def names_in_site_packages() -> list[str]:
    folder = VENV / "lib" / f"python{plan.PYTHON}" / "site-packages"
    return os.listdir(folder) if folder.is_dir() else []


def current_fingerprint() -> str:
    requirements, pyproject = (ROOT / plan.REQUIREMENTS).read_bytes(), (ROOT / "pyproject.toml").read_bytes()
    return plan.fingerprint(requirements, pyproject, venv_python_version())


def stamp(progress: plan.Progress) -> None:
    """Write the stamp in one move: a torn stamp would be read as none."""
    text = plan.Stamp(progress, current_fingerprint(), str(ROOT)).to_json()
    partial = VENV / (plan.STAMP + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, VENV / plan.STAMP)


def uv_command(name: str) -> list[str] | None:
    """Return how to call a uv that runs; None when there is none (a version manager's shim may be there and refuse)."""
    path = shutil.which(name)
    if path is None or output_of([path, "--version"]) is None:
        return None
    cache = output_of([path, "cache", "dir"])
    if cache and can_write_in(Path(cache.strip())):
        return [path]
    say("uv's cache cannot be written to: working without it")
    return [path, "--no-cache"]


def can_write_in(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def uv_has_config_file() -> bool:
    configured = os.environ.get("UV_CONFIG_FILE")
    user = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "uv" / "uv.toml"
    return bool(configured) or user.is_file() or Path("/etc/uv/uv.toml").is_file()


def pip_settings() -> plan.PipSettings:
    """What pip is configured with, asked of whichever pip there is; only its variables when there is none."""
    variables = "\n".join(
        f":env:.{option}={os.environ[name]!r}"
        for name, option in (("PIP_FIND_LINKS", "find-links"), ("PIP_INDEX_URL", "index-url"), ("PIP_CERT", "cert"))
        if os.environ.get(name)
    )
    for command in (["pip3"], ["pip"], [sys.executable, "-m", "pip"]):
        listing = output_of([*command, "config", "list"])
        if listing is not None:
            return usable(plan.parse_pip_config(listing + "\n" + variables))
    return usable(plan.parse_pip_config(variables))


def usable(pip: plan.PipSettings) -> plan.PipSettings:
    """Drop folders that are not there: pip skips them, uv stops at them."""
    links = tuple(link for link in pip.find_links if "://" in link or Path(link).expanduser().exists())
    return plan.PipSettings(links, pip.index_url, pip.certificates)


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


def create_environment(uv: Sequence[str] | None) -> None:
    python = None if uv else python_to_build_with()  # before anything is removed
    free_gib = shutil.disk_usage(ROOT).free / 2**30
    if VENV.is_symlink():
        VENV.unlink()
    elif VENV.exists():
        free_gib += plan.FREE_GIB_NEEDED  # what is removed makes the room
        shutil.rmtree(VENV)
    if free_gib < plan.FREE_GIB_NEEDED:
        raise plan.SetupError(
            f"{free_gib:.1f} GiB are free in {ROOT} and {plan.FREE_GIB_NEEDED} GiB are needed: "
            "free some space and run it again."
        )
    with step(f"Python {plan.PYTHON} environment, with {'uv' if uv else python}"):
        run([*uv, "venv", "--python", plan.PYTHON, str(VENV)] if uv else [str(python), "-m", "venv", str(VENV)], {})


def bootstrap_uv() -> list[str] | None:
    """Install uv into ``.venv``: it installs the rest ten times faster than pip. None where it cannot be had."""
    own = str(VENV / "bin" / "uv")
    if (uv := uv_command(own)) is not None:
        return uv
    if output_of([str(VENV_PYTHON), "-m", "pip", "--version"]) is None:  # made by a uv that is gone
        with step("pip into .venv"):
            run([str(VENV_PYTHON), "-m", "ensurepip"], {})
    try:
        with step("uv into .venv (there is none on PATH)"):
            run([str(VENV_PYTHON), "-m", "pip", "install", "--no-input", "uv"], {"PIP_USER": "0"})
    except plan.SetupError:
        say("uv cannot be had here: pip does the work, which takes some minutes")
        return None
    return uv_command(own)


def install_packages(
    installer: Sequence[str], additions: Mapping[str, str], wanted: Sequence[str], pip: plan.PipSettings
) -> None:
    """Install the wanted requirements and, always, this project: its own declarations may have changed."""
    torch = plan.torch_requirement(wanted)
    if torch is not None:
        install_torch(installer, additions, torch, pip)
    others = [requirement for requirement in wanted if requirement != torch]
    title = f"{len(others)} packages and this project" if others else "this project"
    with tempfile.TemporaryDirectory() as folder, step(title):
        listed = Path(folder) / "requirements.txt"
        listed.write_text("\n".join(others) + "\n", encoding="utf-8")
        run([*installer, "--no-deps", *(["-r", str(listed)] if others else []), "-e", str(ROOT)], additions)


def install_torch(installer: Sequence[str], additions: Mapping[str, str], torch: str, pip: plan.PipSettings) -> None:
    """Install torch from the first place that has it; it is the one package that PyPI has no CPU build of."""
    override = os.environ.get(plan.TORCH_INDEX_VARIABLE)
    variables = {"UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_EXTRA_INDEX_URL", "PIP_EXTRA_INDEX_URL"}
    links = [*pip.find_links, *filter(None, os.environ.get("UV_FIND_LINKS", "").split(","))]
    sources = plan.torch_sources(
        torch,
        override=override,
        link_contents={link: folder_contents(link) for link in links},
        other_index=bool(pip.index_url or variables & set(os.environ) or uv_has_config_file()),
    )
    addresses = {
        plan.TorchSource.CONFIGURED: [],
        plan.TorchSource.PYTORCH: ["--index-url", plan.PYTORCH_CPU_INDEX],
        plan.TorchSource.OVERRIDE: ["--index-url", override or ""],
    }
    for source in sources:
        try:
            with step(f"{torch} from {source.value}"):
                run([*installer, "--no-deps", torch, *addresses[source]], additions)
            return
        except plan.SetupError as error:
            if source is sources[-1]:
                raise plan.SetupError(
                    f"{error}\nThe wheel may also come from elsewhere: set {plan.TORCH_INDEX_VARIABLE} to a mirror of "
                    "PyTorch's CPU index, or PIP_FIND_LINKS to a folder that holds it."
                ) from None
            say("not there: trying the next place")


def folder_contents(link: str) -> list[str]:
    folder = Path(link.replace("file://", "", 1)).expanduser()
    return os.listdir(folder) if "://" not in str(folder) and folder.is_dir() else []


# --- running commands


def output_of(command: Sequence[str]) -> str | None:
    """Return what a short question answers, None when it cannot be asked."""
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout if answer.returncode == 0 else None


def run(command: Sequence[str], additions: Mapping[str, str]) -> None:
    """Run a command quietly, with a sign of life now and then.

    Raises:
        SetupError: it failed; the message has the command, the end of what it printed, and what to do.
    """
    with tempfile.TemporaryFile() as printed:
        started = time.monotonic()
        environ = {**os.environ, **additions}
        process = subprocess.Popen(command, stdout=printed, stderr=subprocess.STDOUT, env=environ, cwd=ROOT)
        try:
            while True:
                try:
                    code = process.wait(timeout=HEARTBEAT_S)
                    break
                except subprocess.TimeoutExpired:
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
    """Hold a lock on the list of packages: two set-ups at once would break each other's files."""
    import fcntl  # not on every platform that this file is started on; those were refused before

    with open(ROOT / plan.REQUIREMENTS, "rb") as listed:
        try:
            fcntl.flock(listed, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is at work in this folder: waiting for it")
            fcntl.flock(listed, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    with suppress(BrokenPipeError):  # whoever read along has left; the work goes on
        print(f"set-up: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
