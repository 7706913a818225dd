"""Whether the policy claims any of the agents that were seen: the mistake that leaves a run without a first step."""

from lightning_trainer.agents.report import AgentsReport
from lightning_trainer.config import PolicyConfig

_NAMED = 5


def nothing_claimed(report: AgentsReport, policy: PolicyConfig) -> str | None:
    """Return what to say when agents made calls and the policy claims none of them.

    Those that another policy claims tell nothing of it: this one's may come later.
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
