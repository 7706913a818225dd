"""``opentelemetry-instrument python agent.py`` also captures with us, if ``LIGHTNING_ENDPOINT`` names a daemon.

An instrumentor and not a distro: OpenTelemetry uses the first distro and configurator that it finds, so one of ours
would displace the user's own. It does nothing unless configured: being installed is not enough.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

from lightning_instrumentation.hooks import registry
from lightning_instrumentation.runtime import running
from lightning_instrumentation.zero_code.environ import is_below_run
from lightning_instrumentation.zero_code.start import start


class LightningInstrumentor:
    """An instrumentor with the interface of OpenTelemetry's ``BaseInstrumentor``: the entry point of this package.

    It does not derive from that class, whose package is not a dependency of ours.
    """

    def instrumentation_dependencies(self) -> Collection[str]:
        """Return none: each hook waits for its own package."""
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether our hooks are installed."""
        return registry.is_active()

    def instrument(self, **options: Any) -> None:
        """Start capturing model calls, if ``LIGHTNING_ENDPOINT`` names a daemon, the program has started the client, or
        it runs below ``lightning-trainer run``, whose rollout it then joins; options are ignored."""
        if is_below_run(os.environ):
            start()  # OpenTelemetry's sitecustomize has run in the place of ours
        elif os.environ.get("LIGHTNING_ENDPOINT") or running() is not None:
            registry.install_hooks()

    def uninstrument(self, **options: Any) -> None:
        """Restore every wrapped function; calls in progress are recorded to their end."""
        registry.remove_hooks()
