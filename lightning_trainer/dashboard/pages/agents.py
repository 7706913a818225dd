"""Agents: which were seen, which policies claim them, and what was not captured."""

from typing import Any

from lightning_trainer.agents.report import agents_report
from lightning_trainer.agents.uncaptured import unread_in_words
from lightning_trainer.dashboard.pages.asking import Asked
from lightning_trainer.dashboard.reading.system_prompts import read_prompts
from lightning_trainer.dashboard.site import Site


async def agents(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the agents that were seen, the policies that claim them, and what was not captured."""
    seen = await site.census.get()
    report = agents_report(seen.agents, seen.losses, site.policies, seen.unread)
    return {
        "rows": report["agents"],
        "programs": report["programs"],
        "unread": [unread_in_words(name, count) for name, count in report["unread"].items()],
        "spans_read": seen.spans_read,
        "spans_held": seen.spans_held,
        "policies": site.policies,
    }


async def prompts(site: Site, asked: Asked) -> dict[str, Any]:
    """Return the system prompts of one agent."""
    agent = asked.needed("agent")
    return {"agent": agent, "prompts": await site.store.scan(lambda connection: read_prompts(connection, agent))}
