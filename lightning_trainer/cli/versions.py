"""``lightning-trainer versions``: a policy's versions, read from the store itself, with or without a daemon, or
asked of a daemon elsewhere."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import httpx
from lightning_instrumentation.settings import checked_endpoint
from rich.table import Table

from lightning_trainer.cli.daemon.remote import ask, named_client, policy_there
from lightning_trainer.cli.terminal.console import TerminalConsole, visible_json
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.file import USUAL_CONFIG, load_config
from lightning_trainer.errors import UnknownVersionError
from lightning_trainer.store.places import place_of, reading
from lightning_trainer.versions.archive import archive_root, stored_versions
from lightning_trainer.versions.listing import CanaryRow, VersionRow, best_version, list_versions, other_policies

_BEST = "best"
_PAGE = 1000
"""Maximum number of versions in one answer of a daemon."""


def versions(
    config_path: Path | None,
    policy: str | None,
    *,
    as_json: bool,
    limit: int,
    before: int | None,
    endpoint: str | None = None,
) -> None:
    """Print a policy's newest versions, or the newest before a given one.

    Args:
        config_path: of the configuration file; None: the usual one.
        endpoint: URL of the daemon to ask; None: the configuration's store is read.

    Raises:
        LightningError: the configuration or the store cannot be read, there is no such policy, or the daemon does not
            answer.
    """
    if endpoint is not None:
        url = checked_endpoint(endpoint)
        with named_client(url, config_path) as client:
            rows = _versions_there(url, client, policy_there(url, client, policy), limit=limit, before=before)
        _print(rows, as_json=as_json, limit=limit, others=None)
        return
    config = load_config(config_path or USUAL_CONFIG)
    rows = read_versions(config, config.named_policy(policy), limit=limit, before=before)
    _print(rows, as_json=as_json, limit=limit, others=None if as_json else read_other_policies(config))


def _print(rows: list[VersionRow], *, as_json: bool, limit: int, others: str | None) -> None:
    """Print the versions, and ``others``: a sentence about other policies."""
    if as_json:
        print(visible_json(rows))
    else:
        console = TerminalConsole()
        console.print(_table(rows))
        for row in rows:
            if row["reason"] is not None:
                reason = f"v{row['version']}: {row['reason']}"
                console.print(reason, style="dim", markup=False, highlight=False, soft_wrap=True)
        if rows and len(rows) == limit and rows[0]["version"] > 0:
            older = f"the older ones: --before {rows[0]['version']}"
            console.print(older, style="dim", highlight=False, soft_wrap=True)
        if others is not None:
            console.print(others, style="dim", markup=False, highlight=False, soft_wrap=True)


def read_versions(
    config: Config, policy: PolicyConfig, *, limit: int | None = None, before: int | None = None
) -> list[VersionRow]:
    """Return the versions of a policy from the configuration's state folder: all, or a page of them."""
    with reading(place_of(config)) as connection:
        return list_versions(
            connection,
            policy,
            stored_versions(archive_root(config.shared_dir, policy.name)),
            before=before,
            newest=limit,
        )


def read_other_policies(config: Config) -> str | None:
    """Return a sentence about policies of the store that the configuration does not name; None if it names all."""
    with reading(place_of(config)) as connection:
        return other_policies(connection, [policy.name for policy in config.policy])


def named_version(config_path: Path, policy_name: str | None, version_name: str) -> tuple[Config, PolicyConfig, int]:
    """Return the configuration, the policy and the version that a command names.

    Args:
        policy_name: needed if there are several policies and the version does not name one.
        version_name: ``12``, ``v12``, ``POLICY@v12`` or ``best``.

    Raises:
        LightningError: the configuration or the store cannot be read, or the name is not that of a version.
    """
    config = load_config(config_path)
    named, name = _split(policy_name, version_name)
    policy = config.named_policy(named)
    return config, policy, _number(policy.name, name, lambda: read_versions(config, policy))


def named_version_there(url: str, client: httpx.Client, policy_name: str | None, version_name: str) -> tuple[str, int]:
    """Return the policy of a daemon and the version that a command names; arguments as of ``named_version``.

    Raises:
        LightningError: the name is not that of a version, or the daemon does not answer.
    """
    named, name = _split(policy_name, version_name)
    policy = policy_there(url, client, named)
    return policy, _number(policy, name, lambda: _versions_there(url, client, policy))


def _versions_there(
    url: str, client: httpx.Client, policy: str, *, limit: int | None = None, before: int | None = None
) -> list[VersionRow]:
    """Return the versions of a daemon's policy: all, or a page of them."""
    path = f"/lightning/policies/{quote(policy, safe='')}/versions"
    rows: list[VersionRow] = []
    while limit is None or len(rows) < limit:
        wanted = _PAGE if limit is None else min(_PAGE, limit - len(rows))
        params = {"limit": wanted} | ({} if before is None else {"before": before})
        page = ask(url, client, "GET", path, params=params)
        rows = [*page, *rows]
        if len(page) < wanted or (before := page[0]["version"]) == 0:
            break
    return rows


def _split(policy_name: str | None, version_name: str) -> tuple[str | None, str]:
    """Return the policy that is named either way, if any, and the version without it."""
    named, _, version_name = version_name.rpartition("@")
    if named and policy_name not in (None, named):
        raise UnknownVersionError(f"--policy is {policy_name!r} and the version is one of {named!r}; name one of them")
    return policy_name or named or None, version_name


def _number(policy: str, name: str, rows: Callable[[], Iterable[VersionRow]]) -> int:
    if name == _BEST:
        best = best_version(rows())
        if best is None:
            raise UnknownVersionError(f"no version of {policy!r} has a held-out score; name one by its number")
        return best
    digits = name.removeprefix("v")
    if not (digits.isascii() and digits.isdigit() and len(digits) < 12):
        raise UnknownVersionError(f"version {name!r} is not a version; write it as 12, v12 or best")
    return int(digits)


def _table(rows: list[VersionRow]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("version", "from", "state", "reward", "held-out", "attempts"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    with_canary = any(row["canary"] for row in rows)
    if with_canary:
        table.add_column("canary", overflow="fold")
    table.add_column("made, UTC")
    for row in rows:
        table.add_row(
            f"v{row['version']}",
            "" if row["parent"] is None else f"v{row['parent']}",
            row["state"],
            _figure(row["reward"]),
            _figure(row["held_out"], row["held_out_error"]),
            str(row["held_out_attempts"] or ""),
            *([_canary(row["canary"])] if with_canary else []),
            f"{datetime.fromtimestamp(row['created_ns'] / 1e9, UTC):%Y-%m-%d %H:%M:%S}",
            style="bold" if row["state"] == "serving" else None,
        )
    return table


def _canary(row: CanaryRow | None) -> str:
    """Return the decision, and the mean rewards with the number of rewards behind each: candidate, then live."""
    if row is None:
        return ""
    seen = row["evidence"]
    if not seen:
        return row["state"]
    new, old = (
        f"{mean:.3f} ({count})" if count else "– (0)"
        for mean, count in zip(seen["means"], seen["rewards"], strict=True)
    )
    said = f"{row['state']} {new}, live {old}"
    if (shadow := seen.get("shadow")) is not None:
        said += f", in shadow; {shadow['dropped']} calls dropped, {shadow['failed']} failed"
    elif unanswered := seen.get("unanswered"):
        said += f"; {unanswered} calls left to the live version"
    return said


def _figure(value: float | None, error: float | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if error is None else f"{value:.3f} ± {error:.3f}"
