"""The environment that Ray is imported and started in. Ray reads some of it while it is imported: set it before.

Its processes inherit it. Whatever the user has set stays as it is.
"""

import os
import secrets

_DEFAULTS = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # not a cluster: listen on the loopback interface only
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # the actor runs in this interpreter, no matter who started it
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "OMP_WAIT_POLICY": "PASSIVE",  # threads that spin while they wait take the cores from the engine and the agents
    "RAY_worker_niceness": "0",  # Ray's 15 would let anything else on the machine take the trainer's cores
    "RAY_gcs_rpc_server_reconnect_timeout_s": "31536000",  # it would end the daemon a minute after its server has died
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill the trainer for the memory of its neighbours
}

_ALONE = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER",)


def set_ray_environment(*, cluster: bool = False) -> None:
    """Set what the user has not set, and a token of this run, so that nobody else on the machine can use this Ray.

    Args:
        cluster: one is joined that others have started: who may use it is theirs to say.
    """
    for name, value in _DEFAULTS.items():
        if not (cluster and name in _ALONE):
            os.environ.setdefault(name, value)
    if cluster:
        return
    if "RAY_AUTH_MODE" not in os.environ:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
