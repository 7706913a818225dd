"""Calls of which the words are known and not the token ids: ids made again from text may be others."""

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
