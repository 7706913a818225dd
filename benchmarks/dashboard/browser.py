"""The system's Chromium, driven by Playwright; no browser is downloaded."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def installed() -> str | None:
    """Return the browser's path; None if it or Playwright is not installed."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return None
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


@contextmanager
def browser() -> Iterator[Any]:
    """Yield a headless browser; None if there is none."""
    path = installed()
    if path is None:
        yield None
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A container has no user namespaces for the sandbox, and a small /dev/shm.
        options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path=path, args=options)
        try:
            yield chromium
        finally:
            chromium.close()
