"""Tells the daemon what this process could not capture, so that users see it where they look at their agents.

The counts travel as a span of their own, like all others. They are totals, so a report that is lost or arrives twice
changes nothing as long as a later one arrives.
"""

from __future__ import annotations

import contextvars
import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lightning_instrumentation import semconv
from lightning_instrumentation.failures import failures
from lightning_instrumentation.spans import lifecycle

if TYPE_CHECKING:
    from lightning_instrumentation.spans.tracing import Tracer


class Losses:
    """The counts that were last reported about this process, and the id that they are reported under."""

    def __init__(self) -> None:
        self.in_child()

    def in_child(self) -> None:
        """Start over under another process id, as a forked child must."""
        self._process_id = os.urandom(8).hex()
        self._told: Mapping[str, int] = {}

    def tell(self, tracer: Tracer) -> None:
        """Write the counts to the spool if they have changed since they were last written."""
        counts = failures.counts()
        if counts == self._told:
            return
        self._told = counts
        # In an empty context: the report is about the process, not about a rollout that is active here.
        contextvars.Context().run(self._write, tracer, counts)

    def _write(self, tracer: Tracer, counts: Mapping[str, int]) -> None:
        said = {semconv.PROCESS_ID: self._process_id, semconv.LOSSES: json.dumps(counts)}
        lifecycle.end(lifecycle.begin(tracer, semconv.LOSSES_SPAN, said, new_trace=True))


losses = Losses()
