"""The calculator agent, trained while its model is asked for a grammar, a forced tool, top_p, top_k and a bias.

The quickstart's model and configuration (``examples/calculator``) with half as many tasks a step. Every step is sampled
in one way and the next in another, round after round, so that all ways see nearly the same weights, which learn
meanwhile. Groups whose attempts earned the same are kept: they teach nothing, but their tokens are compared as well.

``mismatch/abs_mean`` is the mean distance between the logprob with which the engine sampled a token and the trainer's
logprob of it. As long as both mean the same distribution, it is their rounding, as small in every way as in plain; if
the trainer left out what a request asked for, it would be the share of the removed tokens, 0.1 to some nats.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain_core.messages import ToolMessage

from benchmarks.common.learning import Learning, learned
from benchmarks.common.rows import Row, at_least, at_most

TITLE = "The calculator agent trained with a grammar, a forced tool, top_p, top_k and a bias"
_ROUNDS, _TASKS = 3, 5
_QUICK_ROUNDS, _QUICK_TASKS = 1, 2
_TIMES = 2
"""How many times plain's mismatch a way's may be: other tokens round differently."""
_OPERATORS = {" +": 1232, " -": 731, " *": 1672}
"""Tokens of SmolLM2; the bias makes it try more of each."""
_ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}},
    "required": ["answer"],
    "additionalProperties": False,
}

_Steps = Sequence[dict[str, Any]]


def plain(request: ModelRequest) -> ModelRequest:
    return request


def json_schema(request: ModelRequest) -> ModelRequest:
    """Ask for a final answer, which follows the tool's result, of the form ``{"answer": 12}``."""
    if not isinstance(request.messages[-1], ToolMessage):
        return request
    # In the body: if it were an argument, the client would insist on strict tools.
    asked = {"type": "json_schema", "json_schema": {"name": "answer", "schema": _ANSWER}}
    return _asking(request, extra_body={"response_format": asked})


def forced_tool(request: ModelRequest) -> ModelRequest:
    """Make the first answer a call of the tool."""
    asked = not isinstance(request.messages[-1], ToolMessage)
    return request.override(tool_choice="calculator") if asked else request


def top_p(request: ModelRequest) -> ModelRequest:
    # At temperature 1, the most probable token has more than 0.3 nearly everywhere, and no token would have a choice.
    return _asking(request, top_p=0.3, temperature=2.0)


def top_k(request: ModelRequest) -> ModelRequest:
    return _asking(request, extra_body={"top_k": 5})


def logit_bias(request: ModelRequest) -> ModelRequest:
    return _asking(request, logit_bias={str(token): 2 for token in _OPERATORS.values()})


def _asking(request: ModelRequest, **settings: Any) -> ModelRequest:
    return request.override(model_settings={**request.model_settings, **settings})


WAYS: dict[str, Callable[[ModelRequest], ModelRequest]] = {
    "plain": plain,
    "json_schema": json_schema,
    "forced tool": forced_tool,
    "top_p 0.3": top_p,
    "top_k 5": top_k,
    "logit_bias": logit_bias,
}
"""The others are compared with the first."""


def run(quick: bool) -> list[Row]:
    rounds, tasks = (_QUICK_ROUNDS, _QUICK_TASKS) if quick else (_ROUNDS, _TASKS)
    keep_all = "algorithm = { drop_zero_variance_groups = false }"
    steps = learned(Learning("ways", rounds * len(WAYS), tasks, policy=keep_all, ways=tuple(WAYS.values())))
    return rows_of({name: steps[number :: len(WAYS)] for number, name in enumerate(WAYS)})


def rows_of(steps: dict[str, _Steps]) -> list[Row]:
    """Return the rows of the table.

    Args:
        steps: the metrics of each way's steps.
    """
    return [row for name, trained in steps.items() for row in _rows(name, trained, steps["plain"])]


def _rows(name: str, trained: _Steps, plain: _Steps) -> Iterator[Row]:
    def mean(metric: str, of: _Steps = trained) -> float | None:
        seen = [step[metric] for step in of if metric in step]  # a step in which no token had a choice has none
        return fmean(seen) if seen else None

    rewards = ", ".join(f"{step['reward/mean']:.2f}" for step in trained)
    note = f"{sum(step.get('tokens/trained', 0) for step in trained):,.0f} tokens; rewards: {rewards}"
    what, mismatch, unasked = f"{name}: mismatch/abs_mean", mean("mismatch/abs_mean"), mean("mismatch/abs_mean", plain)
    if trained is plain or not unasked:
        yield Row("sampling", what, mismatch, "nats", note=note)
    else:
        if mismatch is not None:
            note = f"{mismatch / unasked:.1f} times that of plain; {note}"
        yield at_most("sampling", what, mismatch, _TIMES * unasked, "nats", note)
    if trained is not plain:
        # Otherwise the request did not reach the engine, and nothing was compared.
        yield at_least("sampling", f"{name}: tokens it restricts", mean("sampling/restricted"), 0.1, "")
        yield Row("sampling", f"{name}: tokens without a choice", mean("sampling/no_choice"), note="share, masked")
    yield at_most("sampling", f"{name}: clipped tokens", mean("actor/pg_clipfrac"), 0.02, "")
