"""``[environments]``: where third-party environments are installed, and what one may use before it counts as broken."""

from pathlib import Path

from pydantic import Field

from lightning_trainer.config.section import Section


class EnvironmentsConfig(Section):
    """Limits of each environment's process; what exceeds one fails its attempt, with a sentence."""

    folder: Path = Path(".venv-environments")
    """Of the interpreters that ``lightning-trainer environments install`` makes."""
    start_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    """Until its process has imported everything."""
    reset_timeout_s: float = Field(default=30.0, gt=0, le=3600)
    step_timeout_s: float = Field(default=5.0, gt=0, le=3600)
    memory_mib: int = Field(default=2048, ge=64)
    """Of the process and all that it starts, together."""
    message_kib: int = Field(default=1024, ge=1, le=65536)
    """Of one observation or action."""
