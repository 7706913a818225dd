"""Starts vLLM's engine and its OpenAI app, puts the middleware in front, and serves until a signal arrives, or a
failure leaves nothing to serve.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import uvicorn

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.arguments import vllm_arguments
from lightning_trainer.serving.host.auth_middleware import AuthMiddleware
from lightning_trainer.serving.host.parent_watchdog import watch_standard_input
from lightning_trainer.serving.host.patches.forking import prefer_fork
from lightning_trainer.serving.host.routes import build_routes
from lightning_trainer.serving.host.settings import HostSettings
from lightning_trainer.serving.host.tokens import routed_experts
from lightning_trainer.serving.host.tokens.continuation import keep_sampled_ids
from lightning_trainer.serving.host.tokens.support_answer import use_for_engine
from lightning_trainer.serving.host.weights.adapter_publisher import AdapterPublisher
from lightning_trainer.serving.host.weights.adapters import Adapters
from lightning_trainer.serving.host.weights.publisher import Publisher
from lightning_trainer.serving.host.weights.rw_lock import RwLock
from lightning_trainer.serving.host.weights.served_model import served_model
from lightning_trainer.serving.host.weights.version_pinning import App


class Ending:
    """The end of serving, caused once: by a signal (the parent's end arrives as SIGTERM), or by ``fail``."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._failure: str | None = None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._event.set)

    def fail(self, reason: str) -> None:
        """End with an error; the first reason counts."""
        self._failure = self._failure or reason
        self._event.set()

    async def wait(self) -> None:
        """Wait for the end.

        Raises:
            EngineError: it is a failure.
        """
        await self._event.wait()
        if self._failure is not None:
            raise EngineError(self._failure)


def interruptible_startup() -> None:
    """Make the signals raise at once: vLLM's start-up blocks the event loop, whose own handlers would run too late."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise SystemExit(0)


_HEALTH_POLL_S = 0.5


async def serve(settings: HostSettings, announce: Callable[[dict[str, Any]], None]) -> None:
    """Serve until SIGTERM, SIGINT, the parent's end, or the engine's.

    Args:
        announce: called once with the port, when requests are answered.

    Raises:
        EngineError: the engine died, or holds weights that are not proven.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    interruptible_startup()
    watch_standard_input()
    arguments = vllm_arguments(settings)
    usage = UsageContext.OPENAI_API_SERVER
    config = AsyncEngineArgs.from_cli_args(arguments).create_engine_config(usage_context=usage)
    routed_experts.enable(config, settings.engine.routed_experts)
    prefer_fork()
    engine = AsyncLLM.from_vllm_config(config, usage_context=usage)
    try:
        ending = Ending()
        if settings.engine.keep_sampled_ids:
            keep_sampled_ids(engine)
        tasks = await engine.get_supported_tasks()
        vllm_app = build_app(arguments, tasks, engine.model_config)
        await init_app_state(engine, vllm_app.state, arguments, tasks)
        publisher = await _publisher(settings, engine, vllm_app)
        use_for_engine(engine)
        middleware = AuthMiddleware(vllm_app, build_routes(publisher, ending.fail), publisher, settings.token)
        async with _listening(middleware, settings.host) as port:
            watching = asyncio.create_task(_watch_engine(engine, ending))
            announce({"port": port})
            try:
                await ending.wait()
            finally:
                watching.cancel()
    finally:
        engine.shutdown()


async def _publisher(settings: HostSettings, engine: Any, vllm_app: Any) -> Publisher | AdapterPublisher:
    from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

    model, weights_directory = served_model(settings, engine), Path(settings.weights_directory)
    if settings.lora_rank is not None:
        adapters = Adapters(engine, vllm_app.state.openai_serving_models, Path(settings.scratch))
        return AdapterPublisher(engine, adapters, model, weights_directory, settings.drain_timeout_s)
    await engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info={}))
    return Publisher(engine, RwLock(), model, weights_directory, settings.drain_timeout_s)


async def _watch_engine(engine: Any, ending: Ending) -> None:
    while not engine.errored:
        await asyncio.sleep(_HEALTH_POLL_S)
    ending.fail("vLLM's engine process died; its last words are in the engine's log")


@contextlib.asynccontextmanager
async def _listening(app: App, host: str) -> AsyncIterator[int]:
    """Serve on a free port of an address of this machine and yield it."""
    # asyncio switches Nagle's delay off only if the protocol is named; otherwise an answer waits 40 ms for an ACK.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind((host, 0))
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=2)  # pyright: ignore[reportArgumentType]
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


class _Server(uvicorn.Server):
    """Leaves the signals to ``Ending``: the engine has to be shut down too."""

    @contextlib.contextmanager
    def capture_signals(self):
        yield
