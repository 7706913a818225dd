"""No call is by an agent that the policy claims; or some calls' agent has almost the name of a claimed one."""

import difflib

from lightning_trainer.config import PolicyConfig
from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.samples.transitions.reasons import Reason


def diagnose(case: Case) -> Finding | None:
    """Compare the agents' names on the calls with the policy's patterns, allowing for a misspelling."""
    if not case.calls:
        return None
    others = sorted(
        {call.agent for call in case.calls if call.agent is not None and not case.policy.claims(call.agent)}
    )
    misspelled = {agent: pattern for agent in others if (pattern := _nearest(agent, case.policy)) is not None}
    if case.own:
        if not misspelled:
            return None
        calls = sum(call.agent in misspelled for call in case.calls)
        return Finding("agent name", f"{counted(calls, 'call')} by {_hint(misspelled, case.policy)}", blocks=False)
    claimed = listed(map(repr, case.policy.agents))
    if not others:
        return Finding(
            Reason.NO_AGENT.value.replace("_", " "),
            f"none of its {counted(len(case.calls), 'call')} carries an agent's name, and policy {case.policy.name} "
            f"claims {claimed}; put @lt.agent(...) around the code that makes them",
        )
    seen = listed(map(repr, others))
    hint = _hint(misspelled, case.policy) if misspelled else f"add {seen} to the policy's agents, or rename the agent"
    return Finding(
        "agent name",
        f"its {counted(len(case.calls), 'call')} are by {seen}, and policy {case.policy.name} claims {claimed}; {hint}",
    )


def _hint(misspelled: dict[str, str], policy: PolicyConfig) -> str:
    pairs = listed(f"{agent!r} is nearest to {pattern!r}" for agent, pattern in misspelled.items())
    return f"{pairs}: rename the agent, or add its name to the agents of policy {policy.name}"


def _nearest(agent: str, policy: PolicyConfig) -> str | None:
    plain = {pattern.strip("*?"): pattern for pattern in policy.agents}
    folded = {name.casefold(): pattern for name, pattern in plain.items() if name}
    close = difflib.get_close_matches(agent.casefold(), list(folded), 1, 0.6)
    return folded[close[0]] if close else None
