"""``[ray]``: the cluster that trainers run in."""

import re
from typing import Literal

from pydantic import Field, field_validator

from lightning_trainer.config.section import Section

_ADDRESS = re.compile(r"[A-Za-z0-9_.-]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")


class RayConfig(Section):
    """``[ray]``: without an address a Ray of the daemon's own, on the loopback interface."""

    address: str | None = None
    """``HOST:PORT`` of the head of a cluster that exists (what ``ray start --head`` prints); None: one of our own."""
    placement: Literal["spread", "pack"] = "pack"
    """Processes of a trainer on as many nodes, or on as few, as possible."""
    start_timeout_s: float = Field(default=300.0, gt=0)
    """How long a cluster has to give the processes their place."""

    @field_validator("address")
    @classmethod
    def _an_address(cls, address: str | None) -> str | None:
        if address is not None and not _ADDRESS.fullmatch(address):
            raise ValueError(f"{address!r} is not the address of a Ray cluster; write HOST:PORT, as in 10.0.0.4:6379")
        return address
