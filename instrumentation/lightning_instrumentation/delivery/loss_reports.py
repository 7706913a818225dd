"""Tells the daemon what this process could not capture, so that it is known where the agents are looked at.

The counts travel as a span of their own, on the road of all others, and are totals: one that is lost or comes twice
changes nothing as long as a later one comes.
"""

from __future__ import annotations

import contextvars
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.telemetry import spans

if TYPE_CHECKING:
    from lightning_instrumentation.telemetry.tracing import Tracer


class Losses:
    """What was said of this process last, and under which id."""

    def __init__(self) -> None:
        self.in_child()

    def in_child(self) -> None:
        self._process_id = os.urandom(8).hex()
        self._told: Mapping[str, int] = {}

    def tell(self, tracer: Tracer) -> None:
        """Write the counts to the spool where they have changed since they were last written."""
        counts = failures.counts()
        if counts == self._told:
            return
        self._told = counts
        # Whichever rollout is being delivered, this is about the process and not about that rollout.
        contextvars.Context().run(self._write, tracer, counts)

    def _write(self, tracer: Tracer, counts: Mapping[str, int]) -> None:
        said = {semconv.PROCESS_ID: self._process_id, semconv.LOSSES: json.dumps(counts)}
        spans.end(spans.begin(tracer, semconv.LOSSES_SPAN, said, new_trace=True))


losses = Losses()
