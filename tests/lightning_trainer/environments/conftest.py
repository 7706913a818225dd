"""Processes of environments against the real packages, in interpreters that are made the first time and kept."""

from collections.abc import Callable, Iterator
from pathlib import Path

import lightning_instrumentation as lt
import pytest

from lightning_trainer.cli.environments.installed import install
from lightning_trainer.environments.limits import Limits
from lightning_trainer.environments.registry import KNOWN, EnvironmentSpec, launch_of
from lightning_trainer.environments.worker.process import EnvironmentProcess

FOLDER = Path(__file__).parents[3] / ".venv-environments"


@pytest.fixture
def started(machines_authorities) -> Iterator[Callable[[str], EnvironmentProcess]]:
    """Start the environment that is written as ``NAME:VARIANT?key=value``; all end with the test."""
    processes: list[EnvironmentProcess] = []

    def start(text: str) -> EnvironmentProcess:
        spec = EnvironmentSpec.parse(text)
        interpreter = KNOWN[spec.name].interpreter
        if interpreter is not None and not (FOLDER / interpreter).exists():
            with machines_authorities():
                install(spec.name, FOLDER)
        processes.append(EnvironmentProcess(launch_of(spec, FOLDER), Limits()))
        return processes[-1]

    yield start
    for process in processes:
        process.close()


@pytest.fixture
def recording(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the client record for a daemon that is not there, which a runner then does not wait for."""
    monkeypatch.setattr("lightning_trainer.rollouts.daemon_client.DaemonClient.wait_until_there", lambda _: None)
    lt.shutdown(0)
    lt.init("http://127.0.0.1:9", spool_dir=tmp_path)
    yield
    lt.shutdown(0)
