"""The environment in which Ray is imported and started. Ray reads some of it on import, so set it before.

Ray's processes inherit it. Variables that the user has set are kept.
"""

import os
import secrets

from lightning_trainer.serving.host.environ import OPENMP_WAITING

_DEFAULTS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # not a cluster: listen only on loopback
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # the actor uses this interpreter, however the daemon was started
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    **OPENMP_WAITING,
    "RAY_worker_niceness": "0",  # Ray's 15 would let anything else on the machine take the trainer's cores
    "RAY_gcs_rpc_server_reconnect_timeout_s": "31536000",  # Ray would end the daemon a minute after its server died
    "RAY_memory_monitor_refresh_ms": "0",  # Ray would kill the trainer for its neighbors' memory use
}

_ALONE = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",)


def set_ray_environment(*, cluster: bool = False) -> None:
    """Set what the user has not set, and a token for this run, so that other users of the machine cannot use this Ray.

    Args:
        cluster: an existing cluster is joined: its own settings decide about access.
    """
    for name, value in _DEFAULTS.items():
        if not (cluster and name in _ALONE):
            os.environ.setdefault(name, value)
    if cluster:
        return
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
