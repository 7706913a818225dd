"""``kind = "examples"``: attempts that went well are shown below the text; no model is asked.

Bootstrapped few-shot examples, drawn at random (Khattab et al., DSPy: Compiling Declarative Language Model Calls into
Self-Improving Pipelines, arXiv 2310.03714, section 4.1): which draw is best is found by trying. An example teaches a
small model more than a rule does, if it looks like a conversation that goes on: a model of 135M parameters follows
``User:`` and ``Assistant:``, but if an example stands between tags it repeats the tags, and the names in them.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean

from lightning_trainer.config.prompts import ExamplesConfig
from lightning_trainer.errors import ProposalError
from lightning_trainer.ingest.dialects.dialect import Message
from lightning_trainer.judges.attempts import JudgedAttempt, Turn
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.rendering import message_text
from lightning_trainer.prompts.placeholders import (
    PLACEHOLDER,
    in_place_of,
    is_formatted,
    is_jinja,
    is_template,
    runs_in_jinja,
)
from lightning_trainer.prompts.proposer import Proposal
from lightning_trainer.store.prompts import LONGEST_TEXT, PromptVersion

_HEADING = "\n\nExamples of tasks that were done well:\n"
_NAMES = {"assistant": "Assistant", "user": "User", "tool": "Tool"}
_OWN = "reward"
"""Name of the reward that an attempt's function returns."""


class ExamplesProposer:
    """Draws examples from attempts; the same attempts and seed give the same text."""

    made_by = "examples"

    def __init__(self, config: ExamplesConfig) -> None:
        self.config = config

    async def propose(self, parent: PromptVersion, attempts: Sequence[JudgedAttempt], seed: int) -> Proposal:
        """Return the parent's text with newly drawn examples in place of its own.

        Raises:
            ProposalError: no attempt went well, or none of those can be shown.
        """
        plain = parent.text.partition(_HEADING)[0]
        found = dict(self._examples(parent.text, attempts))
        if not found:
            no_jinja = " and have no Jinja in them, which the program would run" if is_jinja(plain) else ""
            raise ProposalError(
                f"none of {len(attempts)} attempts earned {self.config.least_reward:g} or more with words that fit "
                f"into {self.config.max_chars:,} characters{no_jinja}, so there is no example for {parent.name!r}; "
                "lower least_reward or raise max_chars in its [[prompt]] section, or try easier tasks"
            )
        drawn = random.Random(seed)
        chosen = drawn.sample(sorted(found), min(len(found), drawn.randint(1, self.config.most)))
        text = plain + _HEADING + "".join(f"\n{_filled_in(found[task], plain)}\n" for task in chosen)
        text = in_place_of(plain, text)
        if len(text) > LONGEST_TEXT:
            raise ProposalError(
                f"{len(chosen)} examples make a text of {len(text):,} characters, and {LONGEST_TEXT:,} is the most; "
                f"lower most or max_chars in the [[prompt]] section of {parent.name!r}"
            )
        reason = f"{len(chosen)} examples: tasks {', '.join(chosen)}"
        return Proposal(text, self.made_by, reason, spent=Budget().spent)

    async def close(self) -> None:
        """Do nothing: nothing is open."""

    def _examples(self, text: str, attempts: Sequence[JudgedAttempt]) -> Iterator[tuple[str, str]]:
        """Yield the task of each good attempt, oldest first, and what was said in it, without the prompt's text."""
        plain = text.partition(_HEADING)[0]
        is_run = is_jinja(plain)
        for one in sorted(attempts, key=lambda one: one.attempt.started_ns):
            reward = reward_of(one.rewards or {})
            if reward is None or reward < self.config.least_reward or (turn := _turn(one, plain)) is None:
                continue
            said = _conversation(turn, text, plain)
            if said is None or (is_run and runs_in_jinja(_filled_in(said, plain))):
                continue  # else a user who writes to the agent could write code that the program runs
            if len(said) <= self.config.max_chars:
                yield one.attempt.task_id, said


def reward_of(rewards: Mapping[str, float]) -> float | None:
    """Return what an attempt earned: the number that its function returned, else the mean of its rewards."""
    return rewards.get(_OWN, fmean(rewards.values()) if rewards else None)


def _turn(one: JudgedAttempt, text: str) -> Turn | None:
    """Return the last whole call that was made with the text, which repeats the ones before; else the last of all."""
    whole = [turn for turn in one.turns if turn.answer is not None and not turn.call.truncated]
    with_it = [turn for turn in whole if any(_has(message, text) for message in turn.prompt)]
    return max(with_it or whole, key=attrgetter("call.start_ns"), default=None)


def _conversation(turn: Turn, text: str, plain: str) -> str | None:
    """Return what was said, in a form that a model would continue; None if the task cannot be told.

    Args:
        text: the prompt with the examples that it may have; the message that holds the prompt is shown without it.
        plain: the prompt without examples.
    """
    assert turn.answer is not None
    told: list[tuple[str, str]] = []
    of_system: list[tuple[str, str]] = []
    for one in turn.prompt:
        role, words = str(one.get("role") or "?"), message_text(one)
        is_system = role in ("system", "developer")
        if role not in ("assistant", "tool") and _has(one, plain):
            rest = _rest(words, text, plain)
            if rest is None and not is_system:
                return None
            words = rest or ""
        elif is_system:
            continue
        (of_system if is_system else told).append(("user" if is_system else role, words))
    said = [one for one in told if one[1].strip()] or [one for one in of_system if one[1]]
    return "\n".join(
        f"{_NAMES.get(role, role)}: {words}" for role, words in [*said, ("assistant", message_text(turn.answer))]
    )


def _rest(message: str, text: str, plain: str) -> str | None:
    """Return what a program has added to the text: before it, for its placeholders, and after it.

    None if the message was made with other examples, since the task cannot be told from theirs.
    """
    for one in (text, plain):
        added, end, at = [], 0, -1
        for piece in _pieces(one):
            at = message.find(piece, end)
            if at < 0:
                break
            added.append(message[end:at].strip())
            end = at + len(piece)
        if at >= 0:
            found = "\n".join(part for part in [*added, message[end:].strip()] if part)
            return None if _HEADING.strip() in found else found
    return None


def _has(message: Message, text: str) -> bool:
    """Whether a message holds the text, judged by the longest piece between its placeholders."""
    longest = max(_pieces(text), key=len, default="")
    return bool(longest) and longest in message_text(message)


def _pieces(text: str) -> list[str]:
    """Return what stands between a text's placeholders, as it is when the program has filled these in."""
    pieces = PLACEHOLDER.split(text)
    if is_formatted(text):
        pieces = [piece.replace("{{", "{").replace("}}", "}") for piece in pieces]
    if is_template(text):
        pieces = [piece.replace("$$", "$") for piece in pieces]
    return [piece.strip() for piece in pieces if piece.strip()]


def _filled_in(example: str, text: str) -> str:
    """Return the example so that it comes out as it is when the program fills the text in: braces of ``str.format`` and
    dollars of ``string.Template`` are doubled."""
    if is_formatted(text):
        example = example.replace("{", "{{").replace("}", "}}")
    return example.replace("$", "$$") if is_template(text) else example
