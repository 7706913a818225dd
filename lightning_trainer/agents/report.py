"""The census as a report: which policy claims an agent, and what was not captured and why. One form for JSON and
terminal."""

from collections.abc import Mapping, Sequence
from typing import TypedDict

from lightning_trainer.agents.census import AgentCensus
from lightning_trainer.agents.uncaptured import ProgramLosses
from lightning_trainer.config import PolicyConfig
from lightning_trainer.types import Fidelity


class AgentRow(TypedDict):
    """One agent in the report."""

    agent: str | None
    """None: calls without an agent's name."""
    policy: str | None
    """The policy that claims it; None if there is none, or no configuration was given."""
    served_by: list[str]
    """Policies that answered its calls, according to the gateway's records."""
    calls: int
    prompt_tokens: int
    sampled_tokens: int
    tools: list[str]
    recognised_by: list[str]
    fidelity: dict[str, int]
    """Calls by grade; every grade is present."""
    not_captured: list[str]
    """One sentence each."""


class AgentsReport(TypedDict):
    """The report, as its JSON."""

    policies: list[str] | None
    """From the configuration, which may have none; None if no configuration was given, so claims are unknown."""
    agents: list[AgentRow]
    unread: dict[str, int]
    """Model-call spans in formats that are not read, by the instrumentation that wrote them."""
    programs: list[ProgramLosses]
    """What the agents' processes report that they could not capture."""


def agents_report(
    census: Sequence[AgentCensus],
    losses: Sequence[ProgramLosses],
    policies: Sequence[PolicyConfig] | None,
    unread: Mapping[str, int] | None = None,
) -> AgentsReport:
    """Return the report.

    Args:
        census: by agent.
        losses: by program.
        policies: of the configuration, None if there is none.
        unread: as in ``Seen``.
    """
    return AgentsReport(
        policies=None if policies is None else [policy.name for policy in policies],
        agents=[_row(one, policies) for one in census],
        unread=dict(unread or {}),
        programs=list(losses),
    )


def _row(one: AgentCensus, policies: Sequence[PolicyConfig] | None) -> AgentRow:
    claiming = next((policy for policy in policies or () if policy.claims(one.agent)), None)
    return AgentRow(
        agent=one.agent,
        policy=claiming and claiming.name,
        served_by=sorted(one.served_by),
        calls=one.calls,
        prompt_tokens=one.prompt_tokens,
        sampled_tokens=one.sampled_tokens,
        tools=sorted(one.tools),
        recognised_by=sorted(one.sources),
        fidelity={grade.value: one.fidelity[grade] for grade in Fidelity},
        not_captured=_not_captured(one, claiming, policies or ()),
    )


def _not_captured(one: AgentCensus, claiming: PolicyConfig | None, policies: Sequence[PolicyConfig]) -> list[str]:
    said = []
    if one.agent is None and one.calls and claiming is None:
        who = 'only a policy with agents = ["*"] claims such calls; ' if policies else ""
        said.append(
            f"{_calls(one.calls)} without an agent's name: {who}put @lt.agent(...) around the code that makes "
            "them, or, where the framework names its agents on OpenTelemetry spans (Google ADK, Strands), give the "
            "program a TracerProvider of OpenTelemetry's SDK, without which these spans say nothing; in other "
            "languages, set gen_ai.agent.name on the span or one above it (AI SDK: functionId)"
        )
    if one.fell_back:
        said.append(f"{_calls(one.fell_back)} without token ids (the daemon was away, so another model answered)")
    if one.unrecorded:
        said.append(
            f"{_calls(one.unrecorded)} without token ids (sent to the gateway, which ended before it could record them)"
        )
    if one.without_ids:
        said.append(
            f"{_calls(one.without_ids)} without token ids (made to a trusted host, whose answers had none: vLLM gives "
            "them, in OpenAI's formats)"
        )
    text_only = one.fidelity[Fidelity.TEXT_ONLY] - one.cancelled - one.fell_back - one.unrecorded - one.without_ids
    if text_only:
        said.append(f"{_calls(text_only)} without token ids ({_why_no_ids(one, claiming)})")
    if claiming is not None:
        # A policy that is no longer configured answered in the past, and answers no more calls: it is left out.
        others = {policy.name for policy in policies} - {claiming.name}
        said += [
            f"{_calls(count)} answered by policy {name!r}, so policy {claiming.name} does not train them: the program "
            f"names {name!r} as its model (or that policy claimed the agent then); name {claiming.name!r}, or a model "
            "that is not a policy"
            for name, count in sorted(one.served_by.items())
            if name in others
        ]
        said += [
            f"{_calls(count)} with exact token ids of {model!r} at {server}: "
            + _why_not_trained(server, model, claiming)
            for (server, model), count in sorted(one.elsewhere.items())
            if not any(engine.serves(server, model) for engine in claiming.trusted)
        ]
    if one.interrupted:
        said.append(f"{_calls(one.interrupted)} cut short: the stream ended before its last chunk")
    if one.cancelled:
        said.append(f"{_calls(one.cancelled)} through the gateway cancelled by the caller before anything was answered")
    if one.failed:
        said.append(f"{one.failed} request{'s' * (one.failed != 1)} that no model answered")
    if one.uncounted_calls:
        said.append(
            f"{_calls(one.uncounted_calls)} of unknown length: neither ids nor the server's counts were recorded"
        )
    return said


def _why_not_trained(server: str, model: str, policy: PolicyConfig) -> str:
    return (
        f"they did not go through the gateway, so it is not known which version of policy {policy.name} sampled them, "
        "and they are not trained (no_policy_version); if that engine serves the policy's weights, add "
        f'[[policy.trusted]] with host = "{server}", model = "{model}" and version = 0, another number or "unknown"'
    )


def _why_no_ids(one: AgentCensus, claiming: PolicyConfig | None) -> str:
    if claiming is not None:
        return f"not made through the gateway, so policy {claiming.name} did not answer and cannot learn from them"
    if one.fidelity[Fidelity.EXACT]:
        return "made to a server that was not asked for them or does not give them"
    return "made to a server that is not the gateway and not a trusted host"


def _calls(count: int) -> str:
    return f"{count:,} call{'s' * (count != 1)}"
