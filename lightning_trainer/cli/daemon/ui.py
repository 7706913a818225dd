"""``lightning-trainer ui``: the dashboard of a stopped run, read-only; for a running one, its dashboard's address."""

import asyncio
import contextlib
import secrets
import signal
from collections.abc import Sequence
from pathlib import Path

from fastapi import FastAPI
from lightning_instrumentation.access.proof import NO_TOKEN

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.cli.daemon.running_daemon import running_daemon, url_for_others
from lightning_trainer.cli.doctor import run_checks
from lightning_trainer.cli.terminal.console import TerminalConsole, named
from lightning_trainer.config import Config
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.daemon.access.token import token_for_clients
from lightning_trainer.daemon.http.server import serving
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.http.trusted_hosts import TrustedHosts
from lightning_trainer.dashboard.routes import Dashboard
from lightning_trainer.dashboard.site import Site, StoppedStore
from lightning_trainer.gateway.http_errors import answer_in_the_callers_shape
from lightning_trainer.store.places import place_of, reading

_HOST = "127.0.0.1"


def ui(config_path: Path | None, state_dir: Path | None, port: int, beside: Sequence[Path] = ()) -> None:
    """Serve until Ctrl-C; if a daemon runs on the folder, say instead where its dashboard is.

    Args:
        config_path: of the configuration file.
        state_dir: the run's; None: the configuration's.
        port: 0 takes a free one.
        beside: state folders of other runs, whose curves are drawn next to this one's.

    Raises:
        LightningError: there is no store, or the port is taken.
    """
    config = load_usual_config(config_path)
    if state_dir is not None:
        daemon = config.daemon.model_copy(update={"state_dir": state_dir.absolute()})
        config = config.model_copy(update={"daemon": daemon})
        if config.store.url is not None:  # the folder has a store of its own, as for --beside
            store = config.store.model_copy(update={"url": None, "shared_dir": None})
            config = config.model_copy(update={"store": store})
    if beside:
        metrics = config.metrics.model_copy(update={"beside": tuple(folder.absolute() for folder in beside)})
        config = config.model_copy(update={"metrics": metrics})
    console = TerminalConsole()
    if running_daemon(config) is not None:
        _say(
            console, f"a daemon runs on {config.daemon.state_dir}, and its dashboard is live: {url_for_others(config)}/"
        )
        return
    with reading(place_of(config)):
        pass  # raises what is wrong with the store before anything listens
    for folder in config.metrics.beside:
        with reading(place_of(config, folder)):
            pass
    kept = None if state_dir is None else config.daemon.state_dir / "token"
    if kept is not None and config.daemon.token is config.daemon.token_env is None and kept.is_file():
        where = f"the token to log in is in {kept}"
    else:
        where = f"`lightning-trainer token{named(config_path)}` prints the token to log in"
    asyncio.run(_serve(config, port, where, console))


async def _serve(config: Config, port: int, where: str, console: TerminalConsole) -> None:
    known = token_for_clients(config.daemon)
    open_to_all = config.daemon.token == NO_TOKEN
    token = None if open_to_all else known or secrets.token_urlsafe(24)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    with contextlib.closing(bind(_HOST, port, "--port")) as listener:
        url = f"http://{_HOST}:{listener.getsockname()[1]}"
        async with serving(dashboard_app(config, token), listener):
            _say(console, f"{config.daemon.state_dir}, read only: {url}/ (Ctrl-C ends it)")
            if token is not None:
                _say(console, where if known else f"to log in: {token}")
            await stop.wait()


def dashboard_app(config: Config, token: str | None) -> FastAPI:
    """Return an app that only shows a stopped run: agents connect to the run's daemon, once that runs."""
    app = FastAPI(title="lightning-trainer", docs_url=None, redoc_url=None, openapi_url=None)
    answer_in_the_callers_shape(app)
    app.add_middleware(TrustedHosts, host=_HOST)
    store = StoppedStore(place_of(config))
    site = Site(config, store, LiveCensus(store), url_for_others(config), live=None, checks=lambda: run_checks(config))
    app.include_router(Dashboard(site, token).router())
    return app


def _say(console: TerminalConsole, sentence: str) -> None:
    console.print(sentence, markup=False, highlight=False, soft_wrap=True)
