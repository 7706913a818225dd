"""``lightning-trainer export``: a version's weights as a folder for other programs, with or without a daemon."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from lightning_trainer.cli.terminal.console import TerminalConsole
from lightning_trainer.cli.versions import named_version, read_other_policies, read_versions
from lightning_trainer.config import Config, PolicyConfig
from lightning_trainer.config.file import load_config
from lightning_trainer.errors import ExportError
from lightning_trainer.models.resolve import found_model, is_hub_id, model_cache, resolve_model
from lightning_trainer.store.places import place_of, reading
from lightning_trainer.store.tables import participations
from lightning_trainer.training.checkpoint_folder import model_mark
from lightning_trainer.versions.archive import archive_root, stored_model, stored_versions, version_folder
from lightning_trainer.versions.export import RECORD, export_version, is_adapter, merge_version, serve_command
from lightning_trainer.versions.listing import VersionRow, Whereabouts


def export(config_path: Path, policy_name: str | None, version_name: str | None, *, out: Path, merge: bool) -> None:
    """Write the folder and say how to serve it.

    Args:
        version_name: ``12``, ``v12``, ``POLICY@v12`` or ``best``; None: the served version.
        merge: whether an adapter is added to its model's weights.

    Raises:
        LightningError: the version's weights are not kept, or the folder cannot be written.
    """
    if version_name is None:
        config = load_config(config_path)
        policy, version = config.named_policy(policy_name), None
    else:
        config, policy, version = named_version(config_path, policy_name, version_name)
    row, stored = _stored(config, policy, version)
    out, console = out.absolute(), TerminalConsole()
    with reading(place_of(config)) as connection:
        started_from = participations.started_from(connection, policy.name)
    model, folder = _base(policy, stored, started_from)
    record, engine = _record(policy, row, model), config.engine_of(policy)
    if merge:
        if not is_adapter(stored):
            raise ExportError(f"{record['version']} is a whole model, not an adapter; leave out --merge")
        model_dir = resolve_model(str(folder or model), model_cache())
        if started_from not in (None, model_mark(model_dir)):
            raise ExportError(
                f"{model_dir} has other weights than the model that {record['version']} was trained from; name a "
                f"folder with those as policy.{policy.name}.model, or leave out --merge"
            )
        merge_version(stored, out, model_dir=model_dir, record=record, chat_template=engine.chat_template)
    else:
        export_version(stored, out, model=model, folder=folder, record=record, chat_template=engine.chat_template)
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    what = f"an adapter of {model}" if is_adapter(out) else "a whole model"
    console.print(f"{record['version']} is in {out}: {what}, {size / 1e6:,.1f} MB; {RECORD} says what it is")
    if is_adapter(out) and folder is not None and started_from not in (None, model_mark(folder)):
        console.print(
            f"{folder} has other weights now than those that {record['version']} was trained from: the adapter does "
            "not fit them",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    console.print(serve_command(out, policy.name, engine), style="dim", markup=False, soft_wrap=True)


def _stored(config: Config, policy: PolicyConfig, version: int | None) -> tuple[VersionRow, Path]:
    """Return the row and the weights' folder of a version; None: of the served one."""
    root = archive_root(config.shared_dir, policy.name)
    rows = read_versions(config, policy)
    if version is None:
        version = next((row["version"] for row in rows if row["state"] == Whereabouts.SERVING), None)
        if version is None:
            others = read_other_policies(config) or "see `lightning-trainer versions`"
            raise ExportError(f"no version of {policy.name!r} is served yet; {others}")
    row = next((row for row in rows if row["version"] == version), None)
    kept = stored_versions(root)
    if row is None or version not in kept:
        there = ", ".join(f"v{one}" for one in kept) or "none"
        more = "" if row is None else "; [policy.versions] says which are kept, and a rollback makes one again"
        what = "has no" if row is None else "does not keep the weights of"
        raise ExportError(f"policy {policy.name!r} {what} version {version}; kept are {there}{more}")
    return row, version_folder(root, version)


def _base(policy: PolicyConfig, stored: Path, started_from: str | None) -> tuple[str, Path | None]:
    """Return the name of the model that the version was trained from, and its folder.

    The name is the one that was noted with the version, and the folder is that model's. If only the configured model
    has the weights that the policy started from, the folder is the configured model's: a model may have been moved, or
    copied to a machine that does not reach the Hub. The name is then the configured one too, unless the noted one is a
    Hub id. If neither model has those weights, the folder is that of the noted name, or None.
    """
    noted = stored_model(stored) or policy.model
    folders = {name: found_model(name, model_cache()) for name in (noted, policy.model)}
    for name, folder in folders.items():
        if folder is not None and model_mark(folder) == started_from:
            return noted if is_hub_id(noted) else name, folder
    return noted, folders[noted]


def _record(policy: PolicyConfig, row: VersionRow, model: str) -> dict[str, Any]:
    return {
        "version": f"{policy.name}@v{row['version']}",
        "parent": None if row["parent"] is None else f"{policy.name}@v{row['parent']}",
        "model": model,
        "made": f"{datetime.fromtimestamp(row['created_ns'] / 1e9, UTC):%Y-%m-%dT%H:%M:%SZ}",
        "state": row["state"],
        "held_out": row["held_out"],
        "held_out_attempts": row["held_out_attempts"],
        "held_out_error": row["held_out_error"],
    }
