"""A question about rollouts and its answer: one explanation, the first line of each of several, or the newest ones.

The command reads a store or files for the answer, a daemon its own store.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from lightning_trainer.config import Config
from lightning_trainer.errors import ConfigError
from lightning_trainer.explain.as_json import as_json
from lightning_trainer.explain.explainer import Explainer
from lightning_trainer.explain.explanation import Explanation
from lightning_trainer.explain.lookup import named, newest, no_rollout
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables.rollouts import RolloutRow

_LISTED = 20
_EXPLAINED = 200


@dataclass(frozen=True, slots=True)
class Question:
    """What ``explain`` was asked. Lists the newest rollouts if neither a name nor ``last`` is given."""

    rollout: str | None = None
    """Id of a rollout, attempt or task, the beginning of one, or a pattern."""
    last: bool = False
    policy: str | None = None
    """Explain rollouts for this one of several policies, and list only its rollouts; None: each for its own policy."""
    agent: str | None = None
    """Name or pattern: only rollouts in which such an agent made a call."""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """One of several rollouts that the configuration cannot explain, with the fields of an explanation's JSON."""

    rollout_id: str
    headline: str
    verdict: None = None
    attempts: tuple[()] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """Either rollouts in a list, or explained ones."""

    listed: Sequence[RolloutRow] | None = None
    nothing: str = ""
    """Why the list is empty."""
    explained: Sequence[Explanation | Unexplained] = ()
    left_out: int = 0
    """Number of older rollouts of that name, which are not explained."""
    problems: Sequence[str] = ()
    """What was left out of the files."""

    def document(self) -> dict[str, Any]:
        """Return everything as a JSON-able value."""
        if self.listed is not None:
            rollouts = [asdict(row) for row in self.listed]
        else:
            rollouts = [asdict(one) if isinstance(one, Unexplained) else as_json(one) for one in self.explained]
        return {"rollouts": rollouts, "older_ones_left_out": self.left_out, "problems": list(self.problems)}


def answer(
    connection: Connection, config: Config, question: Question, *, place: str, problems: Sequence[str] | None = None
) -> Answer:
    """Return what the question asks for.

    Args:
        place: name of what is read, for sentences.
        problems: what was left out of the files that are read in place of a store; None: a store is read.

    Raises:
        LightningError: there is no such rollout or policy, or the configuration cannot explain the only such rollout.
    """
    policy = None if question.policy is None else config.named_policy(question.policy)
    only = policy if len(config.policy) > 1 else None
    empty = Answer(problems=problems or ())
    if question.rollout is None and not question.last:
        rows = newest(connection, _LISTED, only, question.agent)
        why = "" if rows else no_rollout(connection, place, only, question.agent)
        return replace(empty, listed=rows, nothing=why)
    found = named(connection, place, question.rollout, only, question.agent)
    explainer = Explainer(connection, config, policy=policy, from_files=problems is not None)
    if len(found) == 1:
        return replace(empty, explained=[explainer.explain(found[0])])
    explained = [_explained(explainer, rollout_id) for rollout_id in found[-_EXPLAINED:]]
    return replace(empty, explained=explained, left_out=len(found) - len(explained))


def _explained(explainer: Explainer, rollout_id: str) -> Explanation | Unexplained:
    """Explain one of several rollouts; one that cannot be explained does not keep the others from it."""
    try:
        return explainer.explain(rollout_id)
    except ConfigError as error:
        return Unexplained(rollout_id, f"rollout {rollout_id} is not explained: {error}")
