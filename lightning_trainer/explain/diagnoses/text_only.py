"""Calls that the gateway did not answer: of which the words are known and not the token ids, or the ids as well and
not whose weights sampled them."""

from lightning_trainer.explain.case import Case
from lightning_trainer.explain.finding import Finding, counted
from lightning_trainer.transitions.reasons import Reason


def diagnose(case: Case) -> Finding | None:
    calls = case.met(Reason.FIDELITY_TOO_LOW)
    if not calls:
        return None
    of_all = "" if len(calls) == len(case.own) else f" of {len(case.own)}"
    return Finding(
        "text only",
        f"of {counted(len(calls), 'call')}{of_all} the text was recorded and no token ids, and text that is tokenised "
        f"again may give other ids than the engine sampled; let the agent's calls go to the gateway (set "
        f"LIGHTNING_ENDPOINT, or its base URL), which answers as policy {case.policy.name}",
        whole=len(calls) == len(case.own),
    )


def diagnose_elsewhere(case: Case) -> Finding | None:
    """Return what to do about ids that an engine gave which no line of the configuration trusts."""
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
