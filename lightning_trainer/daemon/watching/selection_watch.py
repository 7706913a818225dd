"""Warnings about the agents that policies claim: patterns overlap, or a policy claims none of the agents that call.

The second is looked for until there is a first step: a run that claims no calling agent never has a step.
"""

import asyncio
import logging
from collections.abc import Sequence

from lightning_trainer.agents.live_census import LiveCensus
from lightning_trainer.agents.report import AgentsReport, agents_report
from lightning_trainer.config import PolicyConfig, matches
from lightning_trainer.daemon.watching.progress import Progress
from lightning_trainer.errors import StoreError

_log = logging.getLogger(__name__)

_LONGEST_PAUSE_S = 600.0
_NAMED = 5


def overlaps(policies: Sequence[PolicyConfig]) -> dict[str, list[str]]:
    """Return what to say at the start if patterns of two policies overlap: sentences by the later policy's name.

    The first policy that matches has the agent.

    Two patterns overlap if one matches the other as it is written. Others may have a name in common as well (``a*`` and
    ``*b``); ``lightning-trainer agents`` says for each name that was seen which policy has it.
    """
    found: dict[str, list[str]] = {}
    for position, later in enumerate(policies):
        for earlier in policies[:position]:
            lost = [pattern for pattern in later.agents if matches(pattern, earlier.agents)]
            shared = [pattern for pattern in earlier.agents if matches(pattern, later.agents) and pattern not in lost]
            sentences = found.setdefault(later.name, [])
            if lost:
                sentences.append(
                    f"agents {_listed(lost)} of policy {later.name!r} are claimed by policy {earlier.name!r}, which "
                    "stands before it; put the more exact patterns first"
                )
            if shared:
                sentences.append(
                    f"policy {later.name!r} matches {_listed(shared)} as well, which policy {earlier.name!r} claims: "
                    "it stands before"
                )
    return {name: sentences for name, sentences in found.items() if sentences}


def _listed(patterns: Sequence[str]) -> str:
    return ", ".join(map(repr, patterns))


def nothing_claimed(report: AgentsReport, policy: PolicyConfig) -> str | None:
    """Return what to say when agents made calls and the policy claims none of them.

    Agents that another policy claims tell nothing about this policy: its own may come later.
    """
    calling = [row for row in report["agents"] if row["calls"] and row["policy"] in (None, policy.name)]
    if not calling or any(row["policy"] == policy.name for row in calling):
        return None
    names = [repr(row["agent"]) if row["agent"] is not None else "calls without a name" for row in calling]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"nothing matches the selection: policy {policy.name!r} claims {', '.join(map(repr, policy.agents))}, and seen "
        f"were {', '.join(names[:_NAMED])}{more}; put the names into agents, or name the agents in the program"
    )


async def watch_selection(
    policy: PolicyConfig,
    policies: Sequence[PolicyConfig],
    census: LiveCensus,
    progress: Progress,
    *,
    look_every_s: float = 30.0,
) -> None:
    """Until the first step, look ever less often whether nothing is claimed, and say it once for each set of agents."""
    said: str | None = None
    while progress.steps_done == 0:
        await asyncio.sleep(look_every_s)
        look_every_s = min(2 * look_every_s, max(look_every_s, _LONGEST_PAUSE_S))
        try:
            seen = await census.get()
            sentence = nothing_claimed(agents_report(seen.agents, seen.losses, policies), policy)
        except StoreError as error:
            _log.warning("cannot tell whether the policy claims anybody: %s", error)
            continue
        except Exception:
            _log.exception("cannot tell whether the policy claims anybody")
            continue
        if sentence is not None and sentence != said:
            progress.say(sentence)
            _log.warning("%s", sentence)
            said = sentence
