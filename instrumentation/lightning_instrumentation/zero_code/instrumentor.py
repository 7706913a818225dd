"""``opentelemetry-instrument python agent.py`` captures with us too, where ``LIGHTNING_ENDPOINT`` names a daemon.

An instrumentor and not a distro: OpenTelemetry takes the first distro and configurator that it finds, so one of ours
would push the user's own aside. It does nothing unless asked to: being installed is not being asked.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from lightning_instrumentation.hooks import registry


class LightningInstrumentor:
    """An instrumentor as OpenTelemetry's ``BaseInstrumentor`` describes one: the entry point of this package.

    Without that class: the package that brings it is none of ours.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """None: each hook waits for the package that it belongs to."""
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        return registry.is_active()

    def instrument(self, **options: Any) -> None:
        """Capture model calls from here on, where ``LIGHTNING_ENDPOINT`` names a daemon; options are ignored."""
        if os.environ.get("LIGHTNING_ENDPOINT"):
            registry.install_hooks()

    def uninstrument(self, **options: Any) -> None:
        """Put back every function that was wrapped; calls that are under way are recorded to their end."""
        registry.remove_hooks()
