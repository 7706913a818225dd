"""What the daemon asks for a new version of a prompt, and what it gets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lightning_trainer.errors import ProposalError
from lightning_trainer.store.prompts import PromptVersion

__all__ = ["Proposal", "ProposalError", "Proposers"]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A text that may be better than its parent's; nothing is stored yet."""

    text: str
    made_by: str
    """The kind of the proposer: ``reflect`` or ``examples``."""
    reason: str | None
    """What was wrong with the parent, in the proposer's words; None if it says nothing of that."""
    spent: Mapping[str, int]
    """What the proposer's model was asked for the text: ``calls``, ``input_tokens``, ``output_tokens``."""


class Proposers(Protocol):
    """Makes proposals for every prompt, each by the kind that is configured for its name."""

    async def propose(self, name: str, parent: PromptVersion, attempts: Sequence[str], seed: int) -> Proposal:
        """Return a text made from recorded attempts.

        Args:
            name: of the prompt.
            parent: the version that the text is to be better than.
            attempts: ids of recorded attempts.
            seed: of whatever is drawn; the same attempts and seed give the same request.

        Raises:
            ProposalError: there can be none: nothing is recorded of these attempts, a budget is spent, or the model's
                endpoint refuses.
        """
        ...
