"""The engine's process on this machine: started, watched until it ends, and cleaned up completely."""

import asyncio
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import lightning_trainer
from lightning_trainer.errors import EngineError
from lightning_trainer.serving.engine_client import Engine
from lightning_trainer.serving.host.settings import HostSettings
from lightning_trainer.serving.host_processes import end_group
from lightning_trainer.serving.ownership import owner_tag, remove_orphans
from lightning_trainer.serving.settings import EngineSettings
from lightning_trainer.serving.startup_failure import explain

# The environment in which the engine's process starts; the process itself sets the variables that only vLLM reads
# (``host.environ``).

_NOT_INHERITED = ("PYTHONHOME", "VLLM_API_KEY", "VLLM_CPU_KVCACHE_SPACE", "VLLM_CPU_OMP_THREADS_BIND")
"""Variables that would change the engine without the configuration knowing."""

_DEFAULTS = {
    # glibc returns freed blocks to the kernel, so each pass over the vocabulary (13 MB for 68 tokens of SmolLM2's)
    # page-faults them in again: seven of eight page faults and a fifth of the CPU time of publishing an adapter. These
    # are the largest threshold that glibc accepts, and how much it keeps at the end of a heap for reuse; in bytes.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(256 * 2**20),
}
"""Used if the user has not set them. glibc reads these once, before the process runs any of our code."""


def engine_environment(site: Path, settings: EngineSettings) -> dict[str, str]:
    """Return the engine's environment, based on this process's.

    Args:
        site: the folder that contains our package.
    """
    environment = _DEFAULTS | {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    inherited = environment.pop("PYTHONPATH", "") if settings.engine.python is None else ""
    if settings.gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(settings.gpus)
    return {**environment, "PYTHONPATH": os.pathsep.join(filter(None, (str(site), inherited)))}


logger = logging.getLogger(__name__)

_SCRATCH_PREFIX = "lightning-engine-"
_STOP_GRACE_S = 15.0
_GROUP_GRACE_S = 5.0
_LOG_TAIL_BYTES = 256 * 1024


class EngineProcess(Engine):
    """One life of an engine on this machine: ``start``, ``ready``, use, ``stop``. It cannot be started twice."""

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self.token = secrets.token_urlsafe(32)
        self._scratch: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self.announcement: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        """What the process announced when it became ready: ``port``, ``vllm`` (its version)."""
        self._stopping = False
        self._watching: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start the process and return; ``ready`` waits for it.

        Raises:
            EngineError: there is no model, the disk cannot be written, or the interpreter cannot be run.
        """
        try:
            await self._start()
        except OSError as error:
            self._remove_scratch()
            raise EngineError(f"the engine cannot be started: {error}") from error

    async def _start(self) -> None:
        settings = self.settings
        if not (settings.model_dir / "config.json").is_file():
            raise EngineError(f"{settings.model_dir} is not a model folder: it has no config.json")
        remove_orphans(Path(tempfile.gettempdir()), _SCRATCH_PREFIX)
        self._scratch = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, suffix=f"-{owner_tag()}"))
        site = self._scratch / "site"
        site.mkdir()
        # Only our package, not those installed next to it: another interpreter must not see the daemon's packages.
        (site / "lightning_trainer").symlink_to(Path(lightning_trainer.__file__).resolve().parent)
        settings.log_dir.mkdir(parents=True, exist_ok=True)
        if settings.log_path.exists():
            settings.log_path.replace(settings.log_dir / "engine.previous.log")
        python = settings.engine.python or sys.executable
        with settings.log_path.open("wb") as log:
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *(python, "-m", "lightning_trainer.serving.host"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    env=engine_environment(site, settings),
                    start_new_session=True,
                )
            except OSError as error:
                self._remove_scratch()
                raise EngineError(f"[engine] python = {python!r} cannot be run: {error.strerror}") from error
        self._watching = asyncio.create_task(self._watch(self._process), name="engine-process")

    async def ready(self, timeout_s: float) -> None:
        """Wait until the engine answers requests.

        Raises:
            EngineError: it ended, or takes longer than ``timeout_s``.
        """
        done, _ = await asyncio.wait(
            (self.announcement, self.exited), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if self.exited.done():
            raise EngineError(f"the engine did not start: {self.exited.result()} (log: {self.settings.log_path})")
        if not done:
            raise EngineError(
                f"the engine was not ready after {timeout_s:g} s (log: {self.settings.log_path}); "
                "on a slow machine raise engine.startup_timeout_s"
            )
        port, host = self.announcement.result()["port"], self.settings.host
        self._connect(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}", self.token)

    async def stop(self) -> None:
        """End the process and everything it started; returns when nothing is left. Can be called again."""
        process = self._process
        if process is None:
            return
        self._stopping = True
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            try:
                async with asyncio.timeout(_STOP_GRACE_S):
                    await asyncio.shield(self.exited)
            except TimeoutError:
                logger.warning("the engine did not stop within %g s: killing it", _STOP_GRACE_S)
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
        if self._watching is not None:
            await self._watching
        await self._disconnect()

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        try:
            reason = await self._end_of(process)
        except Exception as error:  # the supervisor waits for the engine's end
            logger.exception("the engine's process could not be watched to its end")
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            reason = f"it was not to be watched any longer: {type(error).__name__}: {error}"
        self._remove_scratch()
        self.exited.set_result(reason)

    async def _end_of(self, process: asyncio.subprocess.Process) -> str:
        """Pass the process its settings, read its announcement, and return why it ended."""
        assert process.stdin is not None
        assert process.stdout is not None
        error: str | None = None
        with contextlib.suppress(ConnectionError):
            process.stdin.write(self._host_settings().to_line().encode("utf-8"))
            await process.stdin.drain()
        async for line in process.stdout:
            with contextlib.suppress(ValueError):
                document = json.loads(line)
                if "error" in document:
                    error = document["error"]
                elif not self.announcement.done():
                    self.announcement.set_result(document)
        status = await process.wait()
        self.killed = status == -signal.SIGKILL and not self._stopping
        # Standard input stays open until here: closing it tells the host that its parent is gone.
        process.stdin.close()
        await asyncio.to_thread(end_group, process.pid, _GROUP_GRACE_S)
        return "it was stopped" if status == 0 else await asyncio.to_thread(self._explain, error, status)

    def _explain(self, error: str | None, status: int) -> str:
        log = self.log_tail().decode("utf-8", errors="replace")
        return explain(log, error, status, on_gpus=self.settings.gpus is not None)

    def log_tail(self) -> bytes:
        """Return the end of the process's log; empty if the file has been removed."""
        try:
            with self.settings.log_path.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
                return log.read()
        except OSError:
            return b""

    def _host_settings(self) -> HostSettings:
        settings = self.settings
        assert self._scratch is not None
        return HostSettings(
            model=str(settings.model_dir),
            policies=settings.policies,
            token=self.token,
            host=settings.host,
            weights_directory=str(settings.weights_dir),
            scratch=str(self._scratch),
            engine=settings.engine,
            threads=settings.threads_here,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            sleeps=settings.sleeps,
            drain_timeout_s=settings.drain_timeout_s,
            lora_rank=settings.lora_rank,
        )

    def _remove_scratch(self) -> None:
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
