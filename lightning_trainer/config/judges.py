"""``[[judge]]``: models and programs that each give the reward of their own name, and what they may cost."""

import math
import re
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from lightning_trainer.config.model_endpoint import Asked, ModelEndpoint, SectionName
from lightning_trainer.config.sections import Section


class JudgeSection(Asked):
    """Settings of every kind of judge; ``reward = { NAME = 1.0 }`` uses the evaluations of the judge ``NAME``."""

    SECTION: ClassVar[str] = "judge"

    wait_s: float = Field(default=300.0, gt=0, le=86400)
    """How long a step waits for the judge; a score that has not arrived by then is missing."""
    checked_by: tuple[str, ...] = ()
    """Names of rewards known to be right, 0 or 1 (a checker's, a person's label), with which the judge is compared."""
    floor: float = Field(default=0.2, gt=0, le=1)
    """With ``correct = true``: how well the judge must certainly separate right from wrong for its reward to be used; 0
    is a coin toss."""

    NOT_JUDGED_BY: ClassVar[frozenset[str]] = frozenset(
        {"name", "timeout_s", "wait_s", "concurrency", "checked_by", "floor"}
    )
    """Settings that do not affect a verdict."""

    @property
    def of_parts(self) -> bool:
        """Whether its verdicts are on the agents or calls of an attempt instead of the whole."""
        return False

    @property
    def of_groups(self) -> bool:
        """Whether it judges all attempts of a group at once, relative to each other: its scores of different groups are
        not comparable."""
        return False

    @property
    def fingerprint(self) -> str:
        """A text that is equal for judges whose settings give the same verdicts."""
        return self.model_dump_json(exclude=set(self.NOT_JUDGED_BY))

    @model_validator(mode="after")
    def _whole_attempts_are_checked(self) -> Self:
        if self.of_parts and self.checked_by:
            raise ValueError(
                f"judge {self.name!r} scores agents or calls, and checked_by compares whole attempts; leave checked_by "
                "out, or say it of a judge that scores whole attempts"
            )
        return self

    @model_validator(mode="after")
    def _something_else_checks_it(self) -> Self:
        if self.name in self.checked_by:
            raise ValueError(
                f"judge {self.name!r} is checked_by its own verdicts, which always agree with themselves; name rewards "
                "that another source gives, such as a checker's"
            )
        return self


class ModelJudge(JudgeSection, ModelEndpoint):
    """Settings of judges that ask a model."""

    NOT_JUDGED_BY: ClassVar[frozenset[str]] = JudgeSection.NOT_JUDGED_BY | {
        *("api_key_env", "retries", "budget", "max_answer_tokens"),
    }


Scale = tuple[float, float]
"""The lowest and the highest score. The reward is a score's place between them, from 0 to 1."""


def checked_scale(scale: Scale | None) -> Scale | None:
    """Return the scale if its two ends are finite and ascending, or if there is none.

    Raises:
        ValueError: they are not.
    """
    if scale is not None and not (scale[0] < scale[1] and all(map(math.isfinite, scale))):
        raise ValueError("write the lowest and the highest score, like [0, 10]")
    return scale


class Criterion(Section):
    """``[[judge.criterion]]``: one thing that a rubric asks."""

    name: SectionName
    says: str = Field(min_length=1, max_length=4000)
    """What must be true of an attempt."""
    weight: float = Field(default=1.0, gt=0, le=1000)


class RubricConfig(ModelJudge):
    """``kind = "rubric"``: named criteria, each with a verdict and a reason."""

    kind: Literal["rubric"]
    criterion: tuple[Criterion, ...] = Field(min_length=1)
    scale: Scale | None = None
    """Scale of every criterion; without one, each is either met or not."""

    _scale = field_validator("scale")(checked_scale)

    @field_validator("criterion")
    @classmethod
    def _names_differ(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        names = [one.name for one in criteria]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"{names.count(name)} criteria are called {name!r}; give each a name of its own")
        return criteria


class GroupConfig(ModelJudge):
    """``kind = "group"``: all attempts of a group in one question."""

    kind: Literal["group"]
    scale: Scale = (0.0, 1.0)

    _scale = field_validator("scale")(checked_scale)

    @property
    def of_groups(self) -> bool:
        return True


class PairwiseConfig(ModelJudge):
    """``kind = "pairwise"``: attempts two by two, in both orders."""

    kind: Literal["pairwise"]
    all_pairs: int = Field(default=6, ge=2, le=64)
    """In groups of up to this many attempts every pair is compared; larger groups are compared in rounds."""

    @property
    def of_groups(self) -> bool:
        return True


class AgentCreditConfig(ModelJudge):
    """``kind = "agent_credit"``: how good an attempt was, and each agent's share in it."""

    kind: Literal["agent_credit"]
    per: Literal["agent", "call"] = "agent"
    scale: Scale = (0.0, 1.0)
    outcome: str | None = None
    """Name of an evaluation that says how good the attempt was; without one, the judge decides."""

    _scale = field_validator("scale")(checked_scale)

    @property
    def of_parts(self) -> bool:
        return True


class ProgramConfig(JudgeSection):
    """``kind = "program"``: a command, or a Python function, in a process of its own."""

    kind: Literal["program"]
    command: tuple[str, ...] | None = None
    """Program and arguments; they do not go through a shell."""
    function: str | None = Field(default=None, pattern=r"^[^:]+:[A-Za-z_][A-Za-z0-9_]*$")
    """``module:function`` or ``file.py:function``."""
    whole_group: bool = False
    """Whether it gets all attempts of a group at once."""
    per: Literal["attempt", "agent", "call"] = "attempt"
    """What it scores."""
    memory_mib: int = Field(default=2048, ge=16)
    """Memory of each of its processes (Linux)."""
    working_dir: Path = Path()

    @model_validator(mode="after")
    def _one_program(self) -> Self:
        if (self.command is None) == (self.function is None):
            raise ValueError(
                f"judge {self.name!r} runs a command or a function: write command = [...] or function = "
                '"module:function", one of them'
            )
        if self.command is not None and not (self.command and self.command[0]):
            raise ValueError(f"judge {self.name!r} has an empty command; name the program")
        if self.whole_group and self.of_parts:
            raise ValueError(
                f"judge {self.name!r} gets a whole group, of which it scores attempts, and has per = {self.per!r}; "
                "leave one of them out"
            )
        return self

    @property
    def of_parts(self) -> bool:
        return self.per != "attempt"

    @property
    def of_groups(self) -> bool:
        return self.whole_group


class ReferenceProbabilityConfig(JudgeSection):
    """``kind = "reference_probability"``: how much the policy's reasoning raises its probability of a reference."""

    kind: Literal["reference_probability"]
    policy: str | None = None
    """The policy whose engine scores, and whose last answer is judged; required if there are several policies."""
    reference: str = Field(default="reference", min_length=1)
    """Field of the rollout's input with the reference answer; ``reward_model.ground_truth`` is a field of a field."""
    lead_in: str = Field(default="The answer is", min_length=1, max_length=1000)
    """Words that introduce the final answer in an answer. They are put before the reference if the answer lacks them,
    and when the probability without reasoning is computed."""
    answer_after: str | None = Field(default=None, min_length=1, max_length=1000)
    """Regular expression whose last match precedes the final answer; None: the lead-in, whatever its case."""
    separator: str = Field(default=" ", max_length=100)
    """Text between lead-in and reference."""

    @property
    def of_groups(self) -> bool:
        """True: one version scores a whole group, and anything that several of its attempts share is scored once."""
        return True

    @field_validator("answer_after")
    @classmethod
    def _a_pattern(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return pattern

    @field_validator("lead_in")
    @classmethod
    def _without_separator(cls, lead_in: str) -> str:
        if lead_in != lead_in.rstrip():
            raise ValueError(f"{lead_in!r} ends in white space; leave it out, and say it as separator")
        return lead_in

    @property
    def begins(self) -> re.Pattern[str]:
        """The pattern after whose last match a final answer begins."""
        if self.answer_after is not None:
            return re.compile(self.answer_after)
        return re.compile(re.escape(self.lead_in), re.IGNORECASE)


KINDS: dict[str, type[JudgeSection]] = {
    "agent_credit": AgentCreditConfig,
    "group": GroupConfig,
    "pairwise": PairwiseConfig,
    "program": ProgramConfig,
    "reference_probability": ReferenceProbabilityConfig,
    "rubric": RubricConfig,
}

AnyJudge = RubricConfig | GroupConfig | PairwiseConfig | AgentCreditConfig | ProgramConfig | ReferenceProbabilityConfig
JudgeConfig = Annotated[AnyJudge, Field(discriminator="kind")]


def normalized(score: float, scale: Scale) -> float:
    """Return a score's place on the scale, from 0 to 1."""
    low, high = scale
    return (score - low) / (high - low)
