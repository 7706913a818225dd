"""No call is by an agent that the policy claims, or the agent of some calls has almost the name of a claimed one."""

import difflib

from lightning_trainer.config import PolicyConfig
from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted, listed
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call


def diagnose(case: Case) -> Finding | None:
    """Compare the agents' names on the calls with the policy's patterns, allowing for a misspelling.

    An agent that another policy answered is that policy's, so its name is no misspelling of this policy's patterns.
    """
    policy = case.policy
    calls = [call for call in case.calls if call.policy in (None, policy.name)]
    others = sorted({call.agent for call in calls if call.agent is not None and not policy.claims(call.agent)})
    misspelled = {agent: pattern for agent in others if (pattern := _nearest(agent, policy)) is not None}
    if case.own:
        if not misspelled:
            return None
        number = sum(call.agent in misspelled for call in calls)
        return Finding("agent name", f"{counted(number, 'call')} by {_hint(misspelled, policy)}", blocks=False)
    return _not_claimed(case, calls, others, misspelled) if case.calls else None


def _not_claimed(case: Case, calls: list[Call], others: list[str], misspelled: dict[str, str]) -> Finding:
    policy, claimed = case.policy, listed(map(repr, case.policy.agents))
    if not calls:
        answered = sorted({call.policy for call in case.calls if call.policy is not None})
        return Finding(
            Reason.OTHER_POLICY.value.replace("_", " "),
            f"all that answered here is {listed(answered)}, and policy {policy.name} claims {claimed}; "
            f"--policy {answered[0]} explains what was trained of it",
        )
    number = counted(len(calls), "call")
    if not others:
        return Finding(
            Reason.NO_AGENT.value.replace("_", " "),
            f"none of its {number} carries an agent's name, and policy {policy.name} claims {claimed}; put "
            "@lt.agent(...) around the code that makes them",
        )
    seen = listed(map(repr, others))
    hint = _hint(misspelled, policy) if misspelled else f"add {seen} to the policy's agents, or rename the agent"
    are = "is" if len(calls) == 1 else "are"
    return Finding("agent name", f"its {number} {are} by {seen}, and policy {policy.name} claims {claimed}; {hint}")


def _hint(misspelled: dict[str, str], policy: PolicyConfig) -> str:
    pairs = listed(f"{agent!r} is nearest to {pattern!r}" for agent, pattern in misspelled.items())
    return f"{pairs}: rename the agent, or add its name to the agents of policy {policy.name}"


def _nearest(agent: str, policy: PolicyConfig) -> str | None:
    plain = {pattern.strip("*?"): pattern for pattern in policy.agents}
    folded = {name.casefold(): pattern for name, pattern in plain.items() if name}
    close = difflib.get_close_matches(agent.casefold(), list(folded), 1, 0.6)
    return folded[close[0]] if close else None
