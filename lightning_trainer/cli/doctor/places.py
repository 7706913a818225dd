"""The port, the folders that a daemon and its agents write to, and the programs that it runs."""

import os
import shutil
import tempfile
from contextlib import closing
from pathlib import Path

from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.settings import default_spool_dir

from lightning_trainer.cli.doctor.check import Check, failure, ok, warning
from lightning_trainer.config import Config, DaemonConfig, PolicyConfig
from lightning_trainer.config.policies.versions import GuardConfig
from lightning_trainer.daemon.http.sockets import bind
from lightning_trainer.daemon.http.tls import SOON_DAYS, read_certificate, without_tls
from lightning_trainer.daemon.loop.checkpoints import CheckpointFolder
from lightning_trainer.errors import ConfigError, LightningError, TrainingError
from lightning_trainer.store.places import place_of
from lightning_trainer.store.postgres.connection import PostgresConnection
from lightning_trainer.store.postgres.schema import version_of
from lightning_trainer.training.checkpoint_folder import require_written_by


def check_port(host: str, port: int) -> Check:
    """Check that the daemon can bind its port."""
    if port == 0:
        return ok("port", "a free one is picked at the start")
    try:
        bind(host, port).close()
    except ConfigError as error:
        said, _, mend = str(error).partition("; ")
        return failure("port", said, f"{mend[:1].upper()}{mend[1:]}.")
    return ok("port", f"{host}:{port} is free")


def check_tls(daemon: DaemonConfig) -> Check:
    """Check whether connections to the daemon are encrypted, and how long the certificate is still valid."""
    try:
        certificate = read_certificate(daemon)
    except ConfigError as error:
        return failure("tls", str(error), "Mend tls_cert and tls_key in [daemon], or take both out.")
    if certificate is None and daemon.loopback:
        return ok("tls", "none, and only this machine reaches it")
    if certificate is None:
        said, _, mend = without_tls(daemon.host).partition(". ")
        return warning("tls", said, f"{mend}.")
    names = ", ".join(certificate.names) or "no name"
    found = f"a certificate for {names}, valid for {certificate.days_left:.0f} days"
    if certificate.days_left < SOON_DAYS:
        return warning("tls", found, "Put a new one in its place: it is shown without a restart.")
    return ok("tls", found)


def check_state_dir(folder: Path) -> Check:
    """Check that the daemon can write to its state folder, or create it."""
    return _check_writable(
        "state folder", folder.absolute(), "set daemon.state_dir to a folder that this user can write to"
    )


def check_shared_dir(config: Config) -> list[Check]:
    """Check that the daemon can write checkpoints and versions, if their folder is not its state folder."""
    if config.shared_dir == config.daemon.state_dir or not config.policy:
        return []
    mend = "set store.shared_dir to a folder that this user can write to"
    return [_check_writable("shared folder", config.shared_dir.absolute(), mend)]


def check_store(config: Config) -> list[Check]:
    """Check the server that the store is on; a store in the state folder needs no check of its own."""
    if config.store.url is None:
        return []
    place = place_of(config)
    assert place.url is not None
    try:
        with closing(PostgresConnection(place.url)) as connection:
            connection.execute("BEGIN")
            found = version_of(connection)
    except LightningError as error:
        said, _, mend = str(error).partition(": check ")
        return [failure("store", said, f"Check {mend}." if mend else "Mend [store] url.")]
    state = "there are no tables yet; the start makes them" if found == 0 else f"{place}, schema {found}"
    if config.policy and config.store.shared_dir is None:
        alone = "without [store] shared_dir no other daemon can go on training here"
        return [ok("store", f"{state}; {alone}")]
    return [ok("store", state)]


def check_spool() -> Check:
    """Check that this user's agents can write to the folder where spans wait for the daemon."""
    mend = "set LIGHTNING_SPOOL_DIR to a folder that this user can write to"
    try:
        return _check_writable("spool folder", default_spool_dir().absolute(), mend)
    except ConfigurationError as error:
        return failure("spool folder", str(error), mend)


def check_guard(policy: str, guard: GuardConfig) -> Check:
    """Check that the program that a policy's guard runs exists and is executable."""
    program = guard.command[0]
    place = str(guard.working_dir / program) if os.sep in program else program
    found = shutil.which(place)
    if found is None:
        where = guard.working_dir.absolute() if os.sep in program else "PATH"
        return failure(
            f"guard of {policy}",
            f"there is no program {program!r} in {where}",
            f"Begin guard.command of the policy {policy} with a program that can be run.",
        )
    return ok(f"guard of {policy}", found)


def check_checkpoints(config: Config) -> list[Check]:
    """Check that training can continue from the existing checkpoints with the configuration's number of processes and
    device."""
    training = config.training
    if training.strategy != "fsdp2":
        return []
    found: list[Check] = []
    for policy in config.policy:
        checkpoints = CheckpointFolder(config.shared_dir / "checkpoints" / policy.name, keep=policy.keep_checkpoints)
        try:
            steps = checkpoints.steps() if policy.train else []
        except OSError:  # the check of the folder says so
            steps = []
        if not steps:
            continue
        name = f"checkpoints of {policy.name}"
        try:
            require_written_by(checkpoints.path(steps[-1]), training.world_size, training.device)
        except TrainingError as error:
            said, _, mend = str(error).partition("; ")
            found.append(failure(name, said, f"{mend[:1].upper()}{mend[1:]}."))
        else:
            found.append(ok(name, f"{len(steps)}, the newest of step {steps[-1]}"))
    return found


def check_demonstrations(policy: PolicyConfig) -> list[Check]:
    """Check that the files that the policy is shown in its stages exist."""
    return [
        warning(
            f"data of {policy.name}",
            f"there is no file {stage.data}",
            "Put it there, unless its stage is over: the daemon does not start without it.",
        )
        for stage in policy.stage
        if stage.data is not None and not stage.data.is_file()
    ]


def nearest(folder: Path) -> Path:
    """Return the folder, or the nearest one above it that this user can see."""
    while not os.path.exists(folder):  # unlike Path.exists, it does not raise for folders that may not be read
        folder = folder.parent
    return folder


def _check_writable(name: str, folder: Path, mend: str) -> Check:
    """Try to write a file in the folder, or where the folder would be made; nothing is left behind."""
    place = nearest(folder)
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        return failure(name, f"{place} cannot be written to: {error.strerror}", f"Make it writable, or {mend}.")
    return ok(name, f"{folder}" if place == folder else f"{folder} (will be made)")
