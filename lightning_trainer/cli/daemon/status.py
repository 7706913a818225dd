"""``lightning-trainer status``: what the running daemon is doing, one block per policy."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

import httpx
from lightning_instrumentation.settings import checked_endpoint
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lightning_trainer.cli.daemon.remote import named_client
from lightning_trainer.cli.daemon.running_daemon import daemon_client, running_daemon
from lightning_trainer.cli.terminal.console import TerminalConsole, named, visible_json
from lightning_trainer.config.file import load_usual_config
from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts.daemon_client import refusal

_Connect: TypeAlias = Callable[[], httpx.Client]
_STEPS_SHOWN = 5
_FIGURES = (
    ("reward", "reward/mean", ".3f"),
    ("KL", "actor/ppo_kl", ".2g"),
    ("entropy", "entropy/sampled", ".3f"),
    ("grad", "grad_norm", ".3g"),
    ("stale", "staleness/mean", ".2g"),
    ("trained", "ledger/trained", ",.0f"),
    ("dropped", "ledger/dropped", ",.0f"),
    ("train s", "seconds/train", ".1f"),
)


def status(
    config_path: Path | None,
    policy: str | None,
    *,
    as_json: bool,
    watch_s: float | None,
    endpoint: str | None = None,
) -> None:
    """Print what the daemon is doing, once or repeatedly.

    Args:
        endpoint: URL of the daemon to ask about its own policies; None: the configuration's daemon.

    Raises:
        LightningError: the configuration cannot be read, there is no such policy, or no daemon answers.
    """
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        connect = partial(named_client, url, config_path)
        names = [*_whole(url, connect)["policies"]] if policy is None else [policy]
        _show(url, connect, names, "", as_json=as_json, watch_s=watch_s)
        return
    config = load_usual_config(config_path)
    names = [one.name for one in config.policy] if policy is None else [config.named_policy(policy).name]
    url = running_daemon(config)
    if url is None:
        raise LightningError(
            f"no daemon runs on {config.daemon.state_dir}; start it with: lightning-trainer serve{named(config_path)}"
        )
    hint = "; `lightning-trainer agents` shows who made which calls"
    _show(url, partial(daemon_client, url, config), names, hint, as_json=as_json, watch_s=watch_s)


def _show(url: str, connect: _Connect, names: list[str], hint: str, *, as_json: bool, watch_s: float | None) -> None:
    """Print the named policies; without one, print what was recorded and add ``hint``."""
    if not names:
        _recorded(url, connect, hint, as_json=as_json, watch_s=watch_s)
        return
    if as_json:
        _print_json(lambda: _ask(url, connect, names), watch_s)
        return
    console = TerminalConsole()
    if watch_s is None:
        console.print(_blocks(_ask(url, connect, names)))
        return
    with Live(_blocks(_ask(url, connect, names)), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(watch_s)
            live.update(_blocks(_ask(url, connect, names)), refresh=True)


def _recorded(url: str, connect: _Connect, hint: str, *, as_json: bool, watch_s: float | None) -> None:
    """Print what a daemon without policies has recorded, once or repeatedly."""
    if as_json:
        _print_json(lambda: {name: _whole(url, connect)[name] for name in ("counts", "store")}, watch_s)
        return
    console = TerminalConsole()
    while True:
        whole = _whole(url, connect)
        counts = whole["counts"]
        console.print(
            f"recording at {url}; spans: {counts['spans']:,}, rollouts: {counts['rollouts']:,}; there is no "
            f"[[policy]], so nothing is served or trained{hint}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        for sentence in _of_store(whole["store"]):
            console.print(sentence)
        if watch_s is None:
            return
        time.sleep(watch_s)


def _of_store(store: dict[str, Any]) -> list[Text]:
    """Return what is wrong with the store, one sentence each."""
    failure, note = store["write_failure"], store["note"]
    sentences = (None if failure is None else f"no call or span is recorded: {failure}", note)
    return [Text(f"note: {sentence}", style="yellow") for sentence in sentences if sentence is not None]


def _whole(url: str, connect: _Connect) -> dict[str, Any]:
    try:
        with connect() as client:
            return client.get("/lightning/status").raise_for_status().json()
    except httpx.HTTPStatusError as error:
        raise LightningError(refusal(url, error.response.status_code, error.response.content)) from error
    except (httpx.HTTPError, ValueError) as error:
        raise LightningError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error


def _print_json(ask: Callable[[], Any], watch_s: float | None) -> None:
    """Print one document, or repeatedly one per line."""
    while watch_s is not None:
        print(visible_json(ask(), indent=None), flush=True)
        time.sleep(watch_s)
    print(visible_json(ask()))


def _ask(url: str, connect: _Connect, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return what the daemon says of each policy and of the store, and the rows of the policy's newest steps."""
    try:
        with connect() as client:
            whole = client.get("/lightning/status").raise_for_status().json()
            found = {}
            newest = {"limit": _STEPS_SHOWN}
            for name in names:
                path = f"/lightning/policies/{quote(name, safe='')}"
                metrics = client.get(f"{path}/metrics", params=newest).raise_for_status().json()
                live = client.get(path, params={"limit": 1}).raise_for_status().json()["live_version"]
                found[name] = {**whole["policies"][name], "store": whole["store"], "live_version": live, **metrics}
            return found
    except httpx.HTTPStatusError as error:
        raise LightningError(refusal(url, error.response.status_code, error.response.content)) from error
    except (httpx.HTTPError, KeyError, ValueError) as error:
        raise LightningError(f"the daemon at {url} did not answer ({type(error).__name__}: {error})") from error


def _blocks(policies: dict[str, dict[str, Any]]) -> Group:
    return Group(*(part for name, policy in policies.items() for part in _block(name, policy)))


def _block(name: str, policy: dict[str, Any]) -> list[Text | Table]:
    phase = f"{policy['phase']} {policy['detail']}".strip()
    head = Text.assemble((name, "bold"), f"  {phase}, {policy['steps_done']} steps, serving {_served(name, policy)}")
    parts: list[Text | Table] = [head]
    if shared := policy.get("trainer_shared_with"):
        parts.append(Text(f"  one trainer for the adapters of this policy and of {', '.join(shared)}"))
    replicas = policy["engine"]["replicas"]
    for number, one in enumerate(replicas if len(replicas) > 1 or replicas[0]["state"] != "ready" else (), 1):
        parts.append(Text(f"  {_replica(number, one)}", style="" if one["state"] == "ready" else "yellow"))
    if len(replicas) > 1 and (said := _conversations(policy["engine"].get("conversations") or {})):
        parts.append(Text(f"  {said}"))
    if lent := policy["engine"].get("sleeps"):
        asleep_s = policy["engine"]["asleep_s"]
        parts.append(Text(f"  the trainer had the engine's GPU {lent} times; calls were held for {asleep_s:.1f} s"))
    if policy["rows"]:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for heading in ("step", *(label for label, *_ in _FIGURES)):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in policy["rows"]:
            figures = (f"{row[key]:{form}}" if key in row else "" for _, key, form in _FIGURES)
            table.add_row(str(row["step"]), *figures)
        parts.append(table)
    for sentence in (*policy["warnings"].values(), *policy["problems"][-3:]):
        parts.append(Text(f"note: {sentence}", style="yellow"))
    return [*parts, *_of_store(policy["store"])]


def _served(name: str, policy: dict[str, Any]) -> str:
    """Return what the daemon's engine serves; another daemon of the same store may have made another version live."""
    live, engine = policy["live_version"], policy["engine"]
    if live is None:
        return "nothing yet"
    served = engine["versions"].get(name, live) if engine["state"] == "ready" else live
    return f"{name}@v{served}" + ("" if served == live else f" ({name}@v{live} is live)")


def _conversations(counts: dict[str, int]) -> str | None:
    stayed, moved = counts.get("stayed", 0), counts.get("moved", 0)
    if not stayed + moved:
        return None
    return f"calls that went on with a conversation: {stayed / (stayed + moved):.0%} of {stayed + moved} at its engine"


def _replica(number: int, one: dict[str, Any]) -> str:
    said = f"engine {number}: {one['state']}"
    if one["pid"] is not None:
        said += f", process {one['pid']}"
    if one.get("node") is not None:
        said += f" on {one['node']}"
    if one["restarts"]:
        said += f", restarts: {one['restarts']}, the last because {one['last_error']}"
    if one.get("retry_at") is not None:
        said += f"; the next try is in {max(0.0, one['retry_at'] - time.time()):.0f} s"
    return said
