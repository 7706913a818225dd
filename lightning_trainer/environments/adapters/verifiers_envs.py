"""Environments of the library verifiers: ``verifiers:NAME`` (installed) or ``verifiers:path/to/file.py``.

The environment runs its own rollout; in place of a model's client it gets one that waits for the next action. So what
happens between turns, when the rollout stops, and how its rubric scores it are up to verifiers. The environment's rows
are the tasks. Source: https://github.com/PrimeIntellect-ai/verifiers (MIT).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import sys
import time
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import numpy
import verifiers as vf
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage
from verifiers.types import ToolCall as NamedCall
from verifiers.utils.env_utils import env_module_name

from lightning_trainer.environments.loading import module_of
from lightning_trainer.environments.protocol import (
    HELD_OUT,
    TRAIN,
    Action,
    Observation,
    Step,
    Task,
    Tool,
    ToolCall,
    ToolResult,
    is_held_out,
)
from lightning_trainer.environments.task_fields import shown, stable_form, text_of

_MODEL = "policy"
"""A model name for environments that read it; it does not decide which model answers."""


class Verifiers:
    """An environment of verifiers.

    Args:
        environment: as for ``verifiers.load_environment``, or the absolute path of a file with ``load_environment``.
        options: for its ``load_environment``.

    Raises:
        ValueError: it is not an environment of verifiers, or its rubric compares rollouts with each other.
    """

    def __init__(self, environment: str, **options: Any) -> None:
        self._environment, source = _loaded(environment, options)
        if not isinstance(self._environment, vf.Environment):
            made = type(self._environment).__name__
            raise ValueError(f"load_environment of {environment} made a {made}; it must make a verifiers Environment")
        if self._environment.requires_group_rollouts:
            raise ValueError(f"the rubric of {environment} scores a group of rollouts at once; one at a time is played")
        self._rows = _rows_of(self._environment)
        # Different code or rows make a different version, because a task's id contains its row number.
        digest = hashlib.sha256(source)
        for split in (TRAIN, HELD_OUT):
            digest.update(json.dumps(self._rows[split], sort_keys=True, default=stable_form).encode())
        self.version = f"1-verifiers-{version_of('verifiers')}-{digest.hexdigest()[:8]}"
        self._loop = asyncio.new_event_loop()
        self._rollout: asyncio.Task[Any] | None = None

    def size(self, split: str) -> int:
        return len(self._rows[split])

    def reset(self, task: Task) -> Observation:
        self._give_up()
        rows = self._rows[task.split]
        if not rows:
            raise ValueError(f"the environment has no {task.split} rows")
        row = rows[task.seed % len(rows)]
        chance = task.random().randrange(2**32)
        random.seed(chance)
        numpy.random.seed(chance)
        self._client = _WaitingClient()
        self._rollout = self._loop.create_task(self._played(row))
        self._told: list[dict[str, Any]] = []
        self._tools: tuple[Tool, ...] | None = None
        return self._turn().observation

    def step(self, action: Action) -> Step:
        self._client.answer(action)
        return self._turn()

    async def _played(self, row: dict[str, Any]) -> Any:
        state = await self._environment.rollout(row, self._client, _MODEL)
        if self._environment.score_rollouts:
            await self._environment.rubric.score_rollout(state)
        await self._environment.rubric.cleanup(state)
        return state

    def _turn(self) -> Step:
        """Run the rollout until it asks for an answer, or has been scored."""
        assert self._rollout is not None
        asked = self._loop.create_task(self._client.asked())
        self._loop.run_until_complete(asyncio.wait({self._rollout, asked}, return_when=asyncio.FIRST_COMPLETED))
        if asked.done():
            prompt, tools = asked.result()
            return Step(self._observed(prompt, tools), 0.0, False)
        asked.cancel()
        state = self._rollout.result()
        if isinstance(state.get("error"), vf.InfraError):  # the infrastructure failed, which is not the model's fault
            raise RuntimeError(f"{type(state['error']).__name__}: {state['error']}")
        if not state["trajectory"]:
            raise RuntimeError(f"the rollout ended before its first turn: {state.get('stop_condition')}")
        final = [_plain(message) for message in state.get("final_env_response") or ()]
        return Step(_observation(final), state["reward"], True, self._parts(state["metrics"] or {}))

    def _observed(self, prompt: list[dict[str, Any]], tools: tuple[Tool, ...]) -> Observation:
        """Return an observation of the messages that the conversation does not yet contain."""
        known = len(self._told)
        first = known == 0
        # If the environment rewrites its messages in a turn, the model is shown all of them.
        goes_on = not first and prompt[:known] == self._told and len(prompt) > known
        new = prompt[known + 1 :] if goes_on else prompt
        self._told = prompt
        changed, self._tools = tools != self._tools, tools
        return _observation(new, tools=tools if changed else None, opening=first)

    def _parts(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return the results of the rubric's functions, except those that only measure, which have no weight."""
        rubric = self._environment.rubric
        weights = zip(rubric._get_reward_func_names(), rubric._get_reward_weights(), strict=True)
        weighed = {name for name, weight in weights if weight}
        return {name: metrics[name] for name in metrics if name in weighed - {"reward"}}

    def _give_up(self) -> None:
        """End a rollout that was not played to its end, including its cleanup."""
        if self._rollout is not None and not self._rollout.done():
            self._rollout.cancel()
            self._loop.run_until_complete(asyncio.wait({self._rollout}))


class _WaitingClient(Client):
    """The model's side of a rollout: each call waits for the action from ``step``."""

    def __init__(self) -> None:
        super().__init__(None)
        self._calls: asyncio.Queue[tuple[list[dict[str, Any]], tuple[Tool, ...]]] = asyncio.Queue()
        self._answer: asyncio.Future[Response] | None = None

    async def asked(self) -> tuple[list[dict[str, Any]], tuple[Tool, ...]]:
        return await self._calls.get()

    def answer(self, action: Action) -> None:
        assert self._answer is not None
        self._answer.set_result(_response(action))

    async def get_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Response:
        self._answer = asyncio.get_running_loop().create_future()
        offered = tuple(Tool(tool.name, tool.description or "", dict(tool.parameters)) for tool in tools or ())
        await self._calls.put(([_plain(message) for message in prompt], offered))
        return await self._answer

    # The rest of a provider client's interface; none of it is called.
    def setup_client(self, config: Any) -> None: ...
    async def to_native_tool(self, tool: Any) -> None: ...
    async def to_native_prompt(self, messages: Any) -> Any: ...
    async def get_native_response(self, *arguments: Any, **more: Any) -> None: ...
    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Any) -> Any: ...
    async def close(self) -> None: ...


def _loaded(environment: str, options: dict[str, Any]) -> tuple[Any, bytes]:
    """Return the environment and the source code of its module."""
    if not environment.endswith(".py"):
        made = vf.load_environment(environment, **options)
        return made, Path(str(sys.modules[env_module_name(environment)].__file__)).read_bytes()
    path = Path(environment)
    if not path.is_absolute():  # the registry has made the path of an existing file absolute
        raise ValueError(f"there is no file {environment!r}; write verifiers:path/to/file.py")
    return module_of(path).load_environment(**options), path.read_bytes()


def _rows_of(environment: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of each split: the evaluation set is held out if there is one, else a share of the rows."""
    own_evaluation = environment.build_eval_dataset() is not None
    if environment.build_dataset() is None:
        rows = [dict(row) for row in environment.get_eval_dataset()]
    else:
        rows = [dict(row) for row in environment.get_dataset()]
        if own_evaluation:
            seen = {_content(row) for row in rows}
            others = [dict(row) for row in environment.get_eval_dataset()]
            return {TRAIN: rows, HELD_OUT: [row for row in others if _content(row) not in seen]}
    held_out = [is_held_out(_content(row)) for row in rows]
    return {
        split: [row for row, held in zip(rows, held_out, strict=True) if held == (split == HELD_OUT)]
        for split in (TRAIN, HELD_OUT)
    }


def _content(row: dict[str, Any]) -> str:
    return json.dumps(row.get("prompt"), default=stable_form)


def _plain(message: Any) -> dict[str, Any]:
    return dict(message) if isinstance(message, dict) else message.model_dump(exclude_none=True)


def _observation(
    messages: list[dict[str, Any]], *, tools: tuple[Tool, ...] | None = None, opening: bool = False
) -> Observation:
    system = [text_of(message) for message in messages if message["role"] == "system"]
    results = tuple(
        ToolResult(message["tool_call_id"], text_of(message)) for message in messages if message["role"] == "tool"
    )
    said = [message for message in messages if message["role"] not in ("system", "tool")]
    return Observation(shown(said), results, tools, "\n\n".join(system) if opening and system else None)


def _response(action: Action) -> Response:
    calls = [NamedCall(id=call.id, name=call.name, arguments=_arguments(call)) for call in action.tool_calls]
    message = ResponseMessage(
        content=action.text,
        tool_calls=calls or None,
        finish_reason="tool_calls" if calls else "stop",
        is_truncated=False,
    )
    return Response(id="played", created=int(time.time()), model=_MODEL, message=message)


def _arguments(call: ToolCall) -> str:
    # Arguments that are not JSON are passed on as they are: the environment has an answer for them.
    return str(call.arguments["_unreadable"]) if "_unreadable" in call.arguments else json.dumps(dict(call.arguments))
