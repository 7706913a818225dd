"""The resources that an environment may use before it counts as broken."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of an environment, with the defaults of ``[environments]`` in ``lightning.toml``."""

    start_timeout_s: float = 60.0
    """Time until its process has imported everything."""
    reset_timeout_s: float = 30.0
    step_timeout_s: float = 5.0
    memory_mib: int = 2048
    """Memory of its process and everything it starts, together."""
    message_kib: int = 1024
    """Size of one observation or action."""
