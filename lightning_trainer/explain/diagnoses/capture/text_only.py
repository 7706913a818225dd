"""Calls that the gateway did not answer: with text but no token ids, or with ids of an unknown policy version."""

from collections import Counter

from lightning_instrumentation import semconv

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Call


def diagnose(case: Case) -> Finding | None:
    """Find calls recorded without token ids, with advice that depends on where the client sent them."""
    calls = case.met(Reason.FIDELITY_TOO_LOW)
    if not calls:
        return None
    of_all = "" if len(calls) == len(case.own) else f" of {len(case.own)}"
    went = Counter(_went(call, case) for call in calls)
    return Finding(
        "text only",
        f"of {counted(len(calls), 'call')}{of_all} the text was recorded and no token ids, and text that is tokenized "
        f"again may give other ids than the engine sampled; {_advice(went, case)}",
        whole=len(calls) == len(case.own),
    )


def diagnose_elsewhere(case: Case) -> Finding | None:
    """Return what to do about ids from an engine that no line of the configuration trusts."""
    calls = case.met(Reason.NO_POLICY_VERSION)
    if not calls:
        return None
    call, policy = calls[0], case.policy
    at = "an engine that is not the daemon's" if call.server is None else f"{call.model!r} at {call.server}"
    line = "" if call.server is None else f' with host = "{call.server}", model = "{call.model}" and its version'
    return Finding(
        "no policy version",
        f"{counted(len(calls), 'call')} did not go through the gateway: {at} gave the token ids, and it is not known "
        f"which version of policy {policy.name} sampled them; if that engine serves the policy's weights, add "
        f"[[policy.trusted]]{line}, else route the agent's calls to the gateway",
        whole=len(calls) == len(case.own),
    )


def _went(call: Call, case: Case) -> str:
    """Return where our client sent a call: to the gateway, to a trusted host, or where it always went: because the
    daemon was down (home), because it answered late (late), or for another reason (elsewhere)."""
    joined = case.joined.get((call.trace_id, call.span_id))
    for record in joined.records if joined is not None else ():
        if semconv.ROUTE_POLICY in record.span.attributes:
            return "home" if record.span.attributes.get(semconv.ROUTE_FELL_BACK) is True else "gateway"
        if record.span.attributes.get(semconv.ROUTE_LATE) is True:
            return "late"
        if record.span.attributes.get(semconv.NO_TOKEN_IDS) is True:
            return "trusted"
    return "elsewhere"


def _advice(went: Counter[str], case: Case) -> str:
    """Return what to do about the calls, never what was already done."""
    said: list[str] = []
    if went["home"]:
        said.append(
            f"{counted(went['home'], 'call')} went to another model because the daemon was away; "
            "LIGHTNING_ROUTE_FALLBACK=0 lets such calls fail instead"
        )
    if went["late"]:
        said.append(
            f"{counted(went['late'], 'call')} went to another model because the daemon, busy or far away, had not said "
            "yet whose calls it takes; a client with the gateway's base URL need not ask"
        )
    if went["gateway"]:
        said.append(f"{counted(went['gateway'], 'call')} went to the gateway, which ended before it could record them")
    if went["trusted"]:
        said.append(
            f"{counted(went['trusted'], 'call')} went to a trusted host, whose answers had no token ids: vLLM gives "
            "them, in OpenAI's formats"
        )
    if went["elsewhere"] or went["trusted"]:
        said.append(
            "let the agent's calls go to the gateway (set LIGHTNING_ENDPOINT, or its base URL), which answers as "
            f"policy {case.policy.name}"
        )
    return "; ".join(said)
