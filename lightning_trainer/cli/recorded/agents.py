"""``lightning-trainer agents``: every agent that was seen, read from the store itself, with or without a daemon, or
asked of a daemon elsewhere."""

from pathlib import Path
from typing import Any

from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.agents.console import show
from lightning_trainer.agents.live_census import see
from lightning_trainer.agents.report import agents_report
from lightning_trainer.cli.daemon.remote import ask, named_client
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import Config
from lightning_trainer.config.file import USUAL_CONFIG, load_config
from lightning_trainer.errors import ConfigError
from lightning_trainer.store.places import StorePlace, place_of, reading
from lightning_trainer.store.upkeep.files import STORE

_USUAL_STATE_DIR = Path(".lightning")


def agents(*, state_dir: Path | None, config: Path | None, as_json: bool, newest: int | None) -> None:
    """Print the report on the ``newest`` spans, or on all if that is None.

    Raises:
        LightningError: the configuration or the store cannot be read.
    """
    settings = _settings(config, needed=state_dir is None)
    usual = StorePlace((state_dir or _USUAL_STATE_DIR) / STORE)
    with reading(usual if settings is None else place_of(settings, state_dir)) as connection:
        seen = see(connection, newest=newest)
    report = agents_report(seen.agents, seen.losses, settings.policy if settings else None, seen.unread)
    seen_of = {"spans_read": seen.spans_read, "spans_held": seen.spans_held}
    _print({**report, **seen_of}, as_json=as_json, hint="; --all reads all of them")


def agents_there(endpoint: str, config: Path | None, *, as_json: bool) -> None:
    """Print the report of the daemon at an endpoint on the newest spans that it has.

    Raises:
        LightningError: the daemon does not answer, or refuses the token.
    """
    url = checked_endpoint(endpoint)
    with named_client(url, config) as client:
        report = ask(url, client, "GET", "/lightning/agents")
    _print(report, as_json=as_json, hint="")


def _print(report: Any, *, as_json: bool, hint: str) -> None:
    """Print a report, whether made here or by a daemon; ``hint``: how to read more spans."""
    if as_json:
        print(visible_json(report))
        return
    console = TerminalConsole()
    show(report, console)
    if report["spans_read"] < report["spans_held"]:
        left_out = f"of the newest {report['spans_read']:,} of {report['spans_held']:,} spans{hint}"
        console.print(left_out, style="dim", highlight=False, soft_wrap=True)


def _settings(config: Path | None, *, needed: bool) -> Config | None:
    """Return the configuration that was named, else the usual one if it is ``needed`` and exists."""
    if config is not None:
        return load_config(config)
    if not needed:
        return None
    if USUAL_CONFIG.is_file():
        return load_config(USUAL_CONFIG)
    if _USUAL_STATE_DIR.is_dir():
        return None
    raise ConfigError(
        f"there is neither {USUAL_CONFIG} nor {_USUAL_STATE_DIR} in this folder: name a configuration with --config "
        "or the daemon's folder with --state-dir"
    )
