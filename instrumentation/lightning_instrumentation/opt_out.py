"""``with lightning.uncaptured():``: what happens inside is as if this client were not there.

OpenTelemetry's suppress key is not that: other instrumentations set it around the very calls that they record.
"""

from __future__ import annotations

from dataclasses import replace

from lightning_instrumentation.block import ScopeBlock
from lightning_instrumentation.scope import Scope, current


class Uncaptured(ScopeBlock):
    """A block of code; see ``uncaptured``."""

    __slots__ = ()

    def _scope(self) -> Scope:
        return replace(current(), uncaptured=True)

    def _entered_already(self) -> str:
        return "this block is entered already; call lightning.uncaptured() anew for every block"


def uncaptured() -> Uncaptured:
    """Leave a block of code alone: ``with`` or ``async with``.

    Model calls inside go where they always went, whoever claims their agent, with nothing added; they, tools and agents
    leave no span. It reaches into threads and tasks that are started inside. Rollouts and rewards are still recorded:
    these you report yourself. Calls whose base URL is the gateway's own are answered, and recorded, there.
    """
    return Uncaptured()
