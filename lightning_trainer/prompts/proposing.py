"""The proposers of a configuration at work: attempts of the store in, a version of a prompt out."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from lightning_trainer.config.prompts import AnyPrompt, ExamplesConfig, ReflectConfig
from lightning_trainer.errors import ProposalError
from lightning_trainer.judges.attempts import JudgedSpans
from lightning_trainer.prompts.examples import ExamplesProposer
from lightning_trainer.prompts.proposer import Proposal
from lightning_trainer.prompts.reflect import ReflectProposer
from lightning_trainer.store.prompts import PromptVersion
from lightning_trainer.store.store import Store


class PromptProposers:
    """The proposers of the ``[[prompt]]`` sections; a prompt without a section gets examples."""

    def __init__(self, store: Store, prompts: Iterable[AnyPrompt]) -> None:
        self._store = store
        self._by_name = {one.name: _made(one) for one in prompts}

    async def propose(self, name: str, parent: PromptVersion, attempts: Sequence[str], seed: int) -> Proposal:
        """Return a text that may be better than the parent's.

        Args:
            attempts: ids of attempts that were made with the parent, or with others of its line; those that a model
                is to read come first.

        Raises:
            ProposalError: there can be none; the sentence says why.
            StoreError: the attempts cannot be read.
        """
        if name not in self._by_name:
            self._by_name[name] = ExamplesProposer(ExamplesConfig(name=name))
        known = {one.attempt_id: one for one in await self._store.attempts(attempt_ids=attempts)}
        in_order = [known[attempt_id] for attempt_id in attempts if attempt_id in known]
        if not in_order:
            raise ProposalError(
                f"the store has none of the {len(attempts)} attempts that a better {name!r} is to be made from; they "
                "may be on their way, or were deleted"
            )
        read = JudgedSpans(await self._store.spans_of_attempts(list(known)), in_order)
        return await self._by_name[name].propose(parent, read.attempts, seed)

    async def close(self) -> None:
        """Close all proposers."""
        for proposer in self._by_name.values():
            await proposer.close()


@asynccontextmanager
async def proposers_at_work(store: Store, prompts: Iterable[AnyPrompt]) -> AsyncIterator[PromptProposers]:
    """Yield the proposers, and close them."""
    proposers = PromptProposers(store, prompts)
    try:
        yield proposers
    finally:
        await proposers.close()


def _made(config: AnyPrompt) -> ReflectProposer | ExamplesProposer:
    return ReflectProposer(config) if isinstance(config, ReflectConfig) else ExamplesProposer(config)
