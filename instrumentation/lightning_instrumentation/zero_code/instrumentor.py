"""``opentelemetry-instrument python agent.py`` captures with us too, where ``LIGHTNING_ENDPOINT`` names a daemon.

An instrumentor and not a distro: OpenTelemetry takes the first distro and configurator that it finds, so one of ours
would push the user's own aside. It does nothing unless asked to: being installed is not being asked.
"""

from __future__ import annotations

import os
from typing import Any


class LightningInstrumentor:
    """What ``opentelemetry-instrument`` expects of an entry point in ``opentelemetry_instrumentor``."""

    def instrument(self, **options: Any) -> None:
        if os.environ.get("LIGHTNING_ENDPOINT"):
            from lightning_instrumentation.registry import install_hooks

            install_hooks()
