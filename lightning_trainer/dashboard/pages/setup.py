"""Set-up: the configuration in force, what ``doctor`` finds, and lines that connect an agent."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_instrumentation.redaction.rules import redactor
from pydantic import BaseModel

from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.site import Site

_SECRETS = frozenset(("token", "token_env", "embeddings_key", "api_key", "api_key_env", "password"))
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")
_HIDDEN = "set, not shown"


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting as the page shows it: secrets are hidden."""

    name: str
    value: str
    default: bool
    """Whether it has its default, or was not set."""


async def setup(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the configuration in force, what ``doctor`` finds, and what an agent needs to connect."""
    config = site.config
    checks = [] if site.checks is None else await asyncio.to_thread(site.checks)
    policy = next(iter(site.policies), None)
    return {
        "sections": _sections(config),
        "checks": checks,
        "checked": site.checks is not None,
        "url": site.url,
        "needs_token": config.daemon.token != "none",
        "model": policy.name if policy else "gpt-5-mini",
        "agent": next((name for name in policy.agents if not set(name) & set("*?[")), "support")
        if policy
        else "support",
        "served": policy is not None,
        "live": site.live is not None,
    }


def _sections(config: BaseModel) -> list[tuple[str, list[Setting]]]:
    """Return the settings of each section, those that were set first."""
    found: list[tuple[str, list[Setting]]] = []
    for name, value in config:
        if isinstance(value, BaseModel):
            found.append((f"[{name}]", list(_settings(value))))
        elif isinstance(value, tuple):
            found += [(f"[[{name}]] {getattr(one, 'name', '')}", list(_settings(one))) for one in value]
    return [(title, sorted(settings, key=lambda one: one.default)) for title, settings in found if settings]


def _settings(section: BaseModel, before: str = "") -> Iterator[Setting]:
    for name, value in section:
        field = type(section).model_fields[name]
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(value, BaseModel):
            yield from _settings(value, f"{before}{name}.")
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            for index, one in enumerate(value):
                yield from _settings(one, f"{before}{name}[{index}].")
        else:
            same = value == default or (
                isinstance(value, Path) and isinstance(default, Path) and value == default.absolute()
            )
            untouched = name not in section.model_fields_set
            yield Setting(f"{before}{name}", _said(name, value), (same or untouched) and not field.is_required())


def _said(name: str, value: object) -> str:
    if value is None:
        return "not set"
    if name in _SECRETS:
        return "none" if value == "none" else _HIDDEN
    if isinstance(value, str):
        text = value
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key} = {one}" for key, one in value.items()) or "{}"
    elif isinstance(value, tuple):
        text = ", ".join(map(str, value)) or "[]"
    else:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    return redactor(())(_CREDENTIALS.sub("", text)) if isinstance(value, (str, tuple, Mapping)) else text
