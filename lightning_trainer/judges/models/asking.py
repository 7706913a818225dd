"""From one question to one validated answer: an unusable answer is asked for again, with the reason, a limited number
of times."""

from collections.abc import Callable
from typing import TypeVar

from lightning_trainer.config.judges import ModelJudge
from lightning_trainer.errors import JudgeError
from lightning_trainer.judges.models.budget import Budget
from lightning_trainer.judges.models.client import ModelClient
from lightning_trainer.judges.models.structured_output import Answer, MalformedAnswerError, parsed, schema_of
from lightning_trainer.judges.models.wire import Reply, Request

AnswerType = TypeVar("AnswerType", bound=Answer)
_LONGEST_REPEATED = 4000
"""Characters of an unusable answer that are shown to the model again."""


async def ask(
    client: ModelClient,
    config: ModelJudge,
    budget: Budget,
    *,
    system: str,
    question: str,
    shape: type[AnswerType],
    check: Callable[[AnswerType], None] = lambda answer: None,
) -> AnswerType:
    """Return an answer of the shape that passes the check.

    Args:
        check: raises MalformedAnswerError if an answer of the right shape is still unusable.

    Raises:
        JudgeError: there is none after ``retries`` more questions, or the endpoint does not answer.
    """
    schema = schema_of(shape)
    messages: list[tuple[str, str]] = [("user", question)]
    for number in range(config.retries + 1):
        request = Request(system, tuple(messages), schema, config.max_answer_tokens, config.temperature)
        reply = await client.ask(request, budget)
        try:
            answer = _usable(reply, shape, config.max_answer_tokens)
            check(answer)
            return answer
        except MalformedAnswerError as error:
            if number == config.retries:
                times = "once" if number == 0 else f"{number + 1} times"
                raise JudgeError(f"{config.model} was asked {times}, and its answer cannot be used: {error}") from error
            again = (
                f"Your answer cannot be used: {error}. Answer again, with one JSON object of the schema and no more."
            )
            # Alternating turns: no format allows an empty answer or two consecutive messages of one role.
            messages = [
                messages[0],
                ("assistant", reply.text[:_LONGEST_REPEATED].strip() or "(nothing)"),
                ("user", again),
            ]
    raise AssertionError("the last try returns or raises")


def _usable(reply: Reply, shape: type[AnswerType], max_tokens: int) -> AnswerType:
    if reply.cut:
        raise MalformedAnswerError(f"it was cut off at {max_tokens} tokens; be shorter (max_answer_tokens)")
    return parsed(reply.text, shape)
