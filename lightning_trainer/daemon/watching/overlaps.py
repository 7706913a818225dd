"""What to say at the start where patterns of two policies overlap: the first policy that matches has the agent."""

from collections.abc import Sequence

from lightning_trainer.config import PolicyConfig, matches


def overlaps(policies: Sequence[PolicyConfig]) -> dict[str, list[str]]:
    """Return sentences by the name of the later policy.

    Two patterns overlap where one matches the other as it is written. Others may have a name in common as well
    (``a*`` and ``*b``); ``lightning-trainer agents`` says for each name that was seen who has it.
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
