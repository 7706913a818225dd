"""``kind = "examples"``: attempts that went well are shown below the text; no model is asked.

Bootstrapped few-shot examples, drawn at random (Khattab et al., DSPy: Compiling Declarative Language Model Calls into
Self-Improving Pipelines, arXiv 2310.03714, section 4.1): which draw is best is found out by trying it. For small models
an example teaches more than a rule.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean

from lightning_trainer.config.prompts import ExamplesConfig
from lightning_trainer.errors import ProposalError
from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.judges.attempts import JudgedAttempt, Turn
from lightning_trainer.judges.rendering import message_text
from lightning_trainer.prompts.proposer import Proposal
from lightning_trainer.prompts.reflect import placeholders
from lightning_trainer.store.prompts import LONGEST_TEXT, PromptVersion

_HEADING = "\n\nExamples of tasks that were done well:\n"
_NAMES = {"assistant": "you", "user": "user", "tool": "tool"}
_OWN = "reward"
"""Name of what an attempt's function returns."""


class ExamplesProposer:
    """Draws examples from attempts; pure but for the seed."""

    made_by = "examples"

    def __init__(self, config: ExamplesConfig) -> None:
        self.config = config

    async def propose(self, parent: PromptVersion, attempts: Sequence[JudgedAttempt], seed: int) -> Proposal:
        """Return the text with other examples than it has.

        Raises:
            ProposalError: no attempt went well, or none of those can be shown.
        """
        plain = parent.text.partition(_HEADING)[0]
        found = dict(self._examples(plain, attempts))
        if not found:
            raise ProposalError(
                f"none of {len(attempts)} attempts earned {self.config.least_reward:g} or more with words that fit "
                f"into {self.config.max_chars:,} characters, so there is no example for {parent.name!r}; lower "
                "least_reward or raise max_chars in its [[prompt]] section, or try easier tasks"
            )
        drawn = random.Random(seed)
        chosen = drawn.sample(sorted(found), min(len(found), drawn.randint(1, self.config.most)))
        text = plain + _HEADING + "".join(f"\n{_filled_in(found[task], plain)}\n" for task in chosen)
        text = text.rstrip()
        if len(text) > LONGEST_TEXT:
            raise ProposalError(
                f"{len(chosen)} examples make a text of {len(text):,} characters, and {LONGEST_TEXT:,} is the most; "
                f"lower most or max_chars in the [[prompt]] section of {parent.name!r}"
            )
        return Proposal(text, self.made_by, f"{len(chosen)} examples: tasks {', '.join(chosen)}")

    async def close(self) -> None:
        """Nothing is open."""

    def _examples(self, text: str, attempts: Sequence[JudgedAttempt]) -> Iterator[tuple[str, str]]:
        """Yield by task what its last good attempt said."""
        for one in sorted(attempts, key=lambda one: one.attempt.started_ns):
            reward = reward_of(one.rewards or {})
            if reward is None or reward < self.config.least_reward or (turn := _turn(one, text)) is None:
                continue
            said = _conversation(turn, text)
            if len(said) <= self.config.max_chars:
                yield one.attempt.task_id, f"<example>\n{said}\n</example>"


def reward_of(rewards: Mapping[str, float]) -> float | None:
    """Return what an attempt earned: the number that its function returned, else the mean of its rewards."""
    return rewards.get(_OWN, fmean(rewards.values()) if rewards else None)


def _turn(one: JudgedAttempt, text: str) -> Turn | None:
    """Return the last whole call that was made with the text, which repeats the calls before; else the last one."""
    whole = [turn for turn in one.turns if turn.answer is not None and not turn.call.truncated]
    with_it = [turn for turn in whole if any(_has(message, text) for message in turn.prompt)]
    return max(with_it or whole, key=attrgetter("call.start_ns"), default=None)


def _conversation(turn: Turn, text: str) -> str:
    assert turn.answer is not None
    shown = [one for one in turn.prompt if not _has(one, text) and one.get("role") not in ("system", "developer")]
    said = [(str(one.get("role") or "?"), message_text(one)) for one in shown]
    return "\n".join(
        f"{_NAMES.get(role, role)}: {words}" for role, words in [*said, ("assistant", message_text(turn.answer))]
    )


def _has(message: Message, text: str) -> bool:
    """Whether a message holds the text, as far as it is not filled in."""
    longest = max(_pieces(text), key=len).strip()
    return bool(longest) and longest in message_text(message)


def _pieces(text: str) -> list[str]:
    pieces = [text]
    for name in placeholders(text):
        pieces = [part for piece in pieces for part in piece.split(name)]
    return pieces


def _filled_in(example: str, text: str) -> str:
    """Return the example as the program's own filling in leaves it: braces of ``str.format`` are doubled."""
    if any(name.startswith("{") and not name.startswith("{{") for name in placeholders(text)):
        return example.replace("{", "{{").replace("}", "}}")
    return example
