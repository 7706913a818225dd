"""``lightning-trainer quickstart``: daemon and agent as two real processes, watched until the agent has improved.

Only the watching is special to the quickstart: the daemon is ``lightning-trainer serve``, the agent process is
``train.py`` of this example, and both would do the same if started by hand.
"""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from lightning_instrumentation.zero_code.environ import beside_proxy

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.announcement import announced_url
from lightning_trainer.errors import LightningError
from lightning_trainer.models.resolve import model_cache, resolve_model
from lightning_trainer.store.sqlite import SqliteStore

from .assemble import assemble
from .child import running, said_since_start
from .live_view import LiveView
from .page import write_report
from .report import QuickstartReport

_EXAMPLE = Path(__file__).parents[1]


def quickstart(*, seed: int, steps: int, heldout: int, out: Path | None) -> None:
    """Run the quickstart, and write ``report.json`` and ``report.html``.

    Raises:
        LightningError: a process failed; the message says which and where its log is.
    """
    run_dir = (out or Path("runs") / f"quickstart-seed-{seed}").absolute()
    if (run_dir / "report.json").exists():
        raise LightningError(f"{run_dir} holds a finished run; choose another folder with --out, or remove it")
    run_dir.mkdir(parents=True, exist_ok=True)
    config = _write_config(run_dir, seed, steps)
    console = TerminalConsole()
    started = time.time()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asks to continue without a terminal
            signal.signal(number, _end)
    with running("daemon", run_dir, [sys.executable, "-m", "lightning_trainer", "serve", "--config", str(config)]) as (
        daemon,
        daemon_log,
    ):
        view = LiveView(console, steps=steps, heldout=heldout)
        with view:
            url = _wait_until_ready(daemon, daemon_log, run_dir, view)
            events = run_dir / "events.jsonl"
            command = [sys.executable, str(_EXAMPLE / "train.py"), "--events", str(events)]
            command += ["--seed", str(seed), "--steps", str(steps), "--heldout", str(heldout)]
            with running("agent", run_dir, command, _agent_environment(url, run_dir)) as (agent, agent_log):
                _watch(agent, agent_log, daemon, daemon_log, events, url, view)
    report = asyncio.run(_report(run_dir, config, seed, started, view.ready_s))
    write_report(report, run_dir)
    view.print_result(report, run_dir)


def _agent_environment(url: str, run_dir: Path) -> dict[str, str]:
    """Return the variables that lead the agent to this run's daemon, whatever is exported for another."""
    return {
        **beside_proxy(os.environ, url),
        "LIGHTNING_ENDPOINT": url,
        "LIGHTNING_TOKEN": _token(run_dir),
        "OTEL_SDK_DISABLED": "false",  # without the client there is nothing to train on
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": "found-by-the-client",
        "OPENAI_MODEL": "calculator",
    }


def _end(number: int, frame: object) -> None:
    """Raise SystemExit, so that this process stops its children first, however it is told to end."""
    raise SystemExit(128 + number)


async def _report(
    run_dir: Path, config_path: Path, seed: int, started: float, ready_s: float | None
) -> QuickstartReport:
    config = load_config(config_path)
    model_dir = resolve_model(config.only_policy.model, model_cache())
    async with SqliteStore(config.daemon.state_dir / "lightning.sqlite") as store:
        return await assemble(
            store,
            config,
            run_dir / "events.jsonl",
            seed=seed,
            started=started,
            ready_s=ready_s,
            model_dir=model_dir,
        )


def _write_config(run_dir: Path, seed: int, steps: int) -> Path:
    """Write the example's configuration with this run's own port, state folder, seed and number of steps."""
    text = (_EXAMPLE / "lightning.toml").read_text(encoding="utf-8")
    text = text.replace('state_dir = ".lightning"', 'state_dir = "state"\nport = 0')
    text = text.replace("\n[[policy]]", f"\n[training]\nseed = {seed}\n\n[[policy]]", 1)
    text = re.sub(r"total_steps = \d+", f"total_steps = {steps}", text)
    text = re.sub(r"warmup_steps = (\d+)", lambda said: f"warmup_steps = {min(int(said[1]), steps - 1)}", text)
    path = run_dir / "lightning.toml"
    path.write_text(text, encoding="utf-8")
    return path


def _wait_until_ready(daemon: subprocess.Popen, log: Path, run_dir: Path, view: LiveView) -> str:
    announcement = run_dir / "state" / "daemon.json"
    while True:
        _must_run(daemon, "daemon", log)
        view.starting(_phases_from(log))
        url = announced_url(announcement)  # not the URL of a run that was killed
        if url is not None:
            status = _get(f"{url}/lightning/policies/calculator", run_dir)
            if status and status["phase"] not in ("starting", "recovering", "publishing"):
                view.ready(status)
                return url
        time.sleep(0.5)


def _watch(
    agent: subprocess.Popen,
    agent_log: Path,
    daemon: subprocess.Popen,
    daemon_log: Path,
    events: Path,
    url: str,
    view: LiveView,
) -> None:
    """Show what both processes say until the agent's process has ended."""
    read = 0
    status = None
    while True:
        ended = agent.poll() is not None
        _must_run(daemon, "daemon", daemon_log)
        if events.exists():
            with events.open("rb") as file:
                file.seek(read)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    read += len(line)
                    view.event(json.loads(line))
        status = _get(f"{url}/lightning/policies/calculator", events.parent) or status
        if status:
            view.status(status)
        if ended:
            if agent.returncode != 0:
                raise LightningError(
                    f"the agent process ended with {agent.returncode}: {_last_line(agent_log)}; log: {agent_log}"
                )
            return
        time.sleep(0.5)


def _must_run(child: subprocess.Popen, name: str, log: Path) -> None:
    if child.poll() is not None:
        raise LightningError(f"the {name} ended with {child.returncode}: {_last_line(log)}; log: {log}")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in said_since_start(log)]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["it said nothing"])[-1][:500]


def _phases_from(log: Path) -> str:
    lines = said_since_start(log)
    return lines[-1][:100] if lines else "starting the daemon"


def _token(run_dir: Path) -> str:
    return (run_dir / "state" / "token").read_text(encoding="ascii").strip()


def _get(url: str, run_dir: Path) -> dict | None:
    import urllib.request

    request = urllib.request.Request(url, headers={"authorization": f"Bearer {_token(run_dir)}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy is needed on this machine
    try:
        with direct.open(request, timeout=10) as response:
            return json.load(response)
    except (OSError, ValueError):
        return None
