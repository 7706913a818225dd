"""A recorded call in the form that users write, with a check of every field that refuses bad values in a sentence."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, NoReturn, cast

from lightning_instrumentation.reward import LARGEST_REWARD

from lightning_trainer.errors import MalformedCallError
from lightning_trainer.experts import RoutedExperts
from lightning_trainer.sampling import Shaping, Support

_LARGEST_ID = 2**31 - 1
"""Token ids are stored as signed integers of four bytes."""
_LARGEST_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One answer of the policy to one prompt, with the ids that the engine saw and sampled.

    Ids and log-probabilities may be any sequence of numbers: a list, a tuple, or an array with ``tolist`` (of NumPy or
    PyTorch).
    """

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    logprobs: Sequence[float] | None
    """Log-probabilities of the sampled ids under the policy that sampled them at ``temperature``, in nats. None:
    unknown, so the call is not trained."""
    attempt: str
    """The attempt that the call is part of. Give an attempt's calls in the order in which they happened."""
    group: str
    """The group of the attempt: attempts at the same task, which are compared with each other."""
    agent: str = "agent"
    reward: float | None = None
    """Reward of this call alone. None: nothing scored it, which is not the same as zero."""
    attempt_reward: float | None = None
    """Reward of the whole attempt; given on one of its calls, or equal on several."""
    policy_version: int = 0
    temperature: float = 1.0
    shaping: Shaping | None = None
    """Bias and penalties that ``logprobs`` include; None: none."""
    support: Support | None = None
    """The tokens from which each one of the response was drawn (a grammar, top_p ...); None: all of the vocabulary."""
    routed_experts: RoutedExperts | None = None
    """The experts of a mixture that prompt and response went through; None: not known."""
    finish_reason: str | None = None
    complete: bool = True
    """False if the answer was cut off before the engine was done."""
    call_id: str | None = None
    """None: the id is made from the position. Two calls with one id are one call that was recorded twice."""


def checked(record: RecordedCall | Mapping[str, Any], where: str) -> RecordedCall:
    """Return the record with plain numbers and tuples in it.

    Args:
        where: the record's name in messages.

    Raises:
        MalformedCallError: a key is missing or unknown, or a field has a value that is not allowed.
    """
    if not isinstance(record, RecordedCall):
        if not isinstance(record, Mapping):
            raise MalformedCallError(f"{where}: it is a {type(record).__name__}; give a mapping or a RecordedCall")
        unknown = sorted((key for key in record if key not in _KEYS), key=repr)
        if unknown:
            raise MalformedCallError(f"{where}: unknown key {unknown[0]!r}; there are {', '.join(sorted(_KEYS))}")
        missing = [key for key in _NEEDED if key not in record]
        if missing:
            raise MalformedCallError(f"{where}: {missing[0]} is missing; a call needs {', '.join(_NEEDED)}")
        record = RecordedCall(**record)
    field = _Fields(record, where)
    return RecordedCall(
        prompt_ids=field.token_ids("prompt_ids"),
        response_ids=field.token_ids("response_ids"),
        logprobs=None if record.logprobs is None else field.numbers("logprobs"),
        attempt=field.name("attempt"),
        group=field.name("group"),
        agent=field.name("agent"),
        reward=None if record.reward is None else field.reward("reward"),
        attempt_reward=None if record.attempt_reward is None else field.reward("attempt_reward"),
        policy_version=field.version("policy_version"),
        temperature=field.temperature("temperature"),
        shaping=field.shaping("shaping"),
        support=field.support("support"),
        routed_experts=field.routed_experts("routed_experts"),
        finish_reason=None if record.finish_reason is None else field.text("finish_reason"),
        complete=field.flag("complete"),
        call_id=None if record.call_id is None else field.name("call_id"),
    )


_KEYS = frozenset(field.name for field in fields(RecordedCall))
_NEEDED = tuple(field.name for field in fields(RecordedCall))[:5]


class _Fields:
    """Reads the fields of one record; every method raises MalformedCallError."""

    def __init__(self, record: RecordedCall, where: str) -> None:
        self._record = record
        self._where = where

    def token_ids(self, name: str) -> tuple[int, ...]:
        ids = self._sequence(name, "a list of token ids")
        for one in ids:
            if not _is_integer(one) or not 0 <= one <= _LARGEST_ID:
                self._refuse(f"{name} holds {_shown(one)}; token ids are integers from 0 to {_LARGEST_ID}")
        return tuple(map(int, ids))

    def numbers(self, name: str) -> tuple[float, ...]:
        found = []
        for position, one in enumerate(self._sequence(name, "a list of numbers, or None where they are not known")):
            number = _number(one)
            if number is None:
                self._refuse(f"{name} holds {_shown(one)} at position {position}; each is a number, in nats")
            found.append(number)
        return tuple(found)

    def reward(self, name: str) -> float:
        value = self._value(name)
        number = _number(value)
        if number is None:
            self._refuse(f"{name} is {_shown(value)}; it is a number, or None where there is none")
        if abs(number) > LARGEST_REWARD:
            self._refuse(f"{name} is {_shown(value)}; a reward has a size of at most {LARGEST_REWARD:g}")
        return number

    def temperature(self, name: str) -> float:
        value = self._value(name)
        number = _number(value)
        if number is None or not 0 < number < math.inf:
            self._refuse(f"{name} is {_shown(value)}; it is a positive number")
        return number

    def version(self, name: str) -> int:
        value = self._value(name)
        if not _is_integer(value) or not 0 <= value <= _LARGEST_VERSION:
            self._refuse(f"{name} is {_shown(value)}; it is an integer from 0")
        return int(value)

    def name(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str) or not value:
            self._refuse(f"{name} is {_shown(value)}; it is a name: a text that is not empty")
        return self.text(name)

    def text(self, name: str) -> str:
        value = self._value(name)
        if not isinstance(value, str):
            self._refuse(f"{name} is {_shown(value)}; it is a text")
        try:
            value.encode()
        except UnicodeEncodeError:
            self._refuse(f"{name} is {_shown(value)}, which is not Unicode; take the lone surrogates out of it")
        return str(value)

    def flag(self, name: str) -> bool:
        value = getattr(self._value(name), "tolist", lambda: self._value(name))()
        if not isinstance(value, bool):
            self._refuse(f"{name} is {_shown(value)}; it is true or false")
        return value

    def shaping(self, name: str) -> Shaping | None:
        value = self._value(name)
        if not isinstance(value, Shaping | None):
            self._refuse(f"{name} is {_shown(value)}; it is a lightning_trainer.sampling.Shaping, or None")
        return value

    def support(self, name: str) -> Support | None:
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, Support):
            self._refuse(f"{name} is {_shown(value)}; it is a lightning_trainer.sampling.Support, or None")
        sampled = self.token_ids("response_ids")
        if len(value) != len(sampled):
            self._refuse(
                f"{name} is of {len(value)} tokens, and there are {len(sampled)} response_ids; it has one entry for "
                "each"
            )
        if (place := value.first_outside(sampled)) is not None:
            self._refuse(f"response_ids[{place}] is {sampled[place]}, which {name} says could not have been sampled")
        return value

    def routed_experts(self, name: str) -> RoutedExperts | None:
        value = self._value(name)
        if value is None:
            return None
        if not isinstance(value, RoutedExperts):
            self._refuse(f"{name} is {_shown(value)}; it is a lightning_trainer.experts.RoutedExperts, or None")
        last = len(self.token_ids("prompt_ids")) + len(self.token_ids("response_ids")) - 1
        if value.end != last:
            self._refuse(
                f"{name} is of the first {value.end} tokens; of prompt_ids and response_ids all but the last, {last}, "
                "went through the model"
            )
        return value

    def _sequence(self, name: str, wanted: str) -> Sequence[Any]:
        given = self._value(name)
        # Checking for `tolist` needs no import of NumPy or PyTorch, and gives plain numbers at once.
        value = given.tolist() if callable(getattr(given, "tolist", None)) else given
        if not isinstance(value, Sequence) or isinstance(value, str | bytes | bytearray | memoryview):
            self._refuse(f"{name} is {_shown(given)}; it is {wanted}")
        return value

    def _value(self, name: str) -> Any:
        return getattr(self._record, name)

    def _refuse(self, sentence: str) -> NoReturn:
        raise MalformedCallError(f"{self._where}: {sentence}")


def _is_integer(value: object) -> bool:
    return type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool))


def _number(value: Any) -> float | None:
    """Return the number as a float; None if it is not a number; infinity if it is too large for a float."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if cast(Any, value) > 0 else -math.inf


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # an integer of more digits than Python writes out
        text = f"an {type(value).__name__} of very many digits"
    return text if len(text) <= 80 else f"{text[:77]}..."
