"""Our own agent for any environment: it sends the conversation to an OpenAI endpoint and the answer to the environment.

It is an ordinary program with the ``openai`` client: its calls go through the gateway and are captured like any other
agent's.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

import lightning_instrumentation as lt
from lightning_instrumentation.routing.hosts import on_this_machine
from lightning_instrumentation.scope import current
from lightning_instrumentation.tool import ToolCall as ToolSpan

from lightning_trainer.environments.protocol import Action, Observation, ToolCall, tools_for_openai
from lightning_trainer.environments.session import Session
from lightning_trainer.errors import MissingExtraError

if TYPE_CHECKING:
    from ssl import SSLContext

    from openai import OpenAI

Agent: TypeAlias = Callable[[Session], Awaitable[None] | None]
"""An agent acts until ``session.done``, or gives up earlier; a coroutine is awaited."""

TURN_REWARD = "turn"
"""The name of the rewards of single model calls; the attempt's own reward has the default name."""

_LONGEST_CALL_S = 600.0
_RETRIES = 2
_RETRY_S = 1.0
"""The gateway's ``Retry-After``."""
_TOO_LONG = ("context_length_exceeded", "maximum context length", "maximum model length")
"""One of these is in the error about a conversation that is too long for the model: OpenAI's, or one of vLLM's two."""

_log = logging.getLogger(__name__)


class ChatAgent:
    """An agent that plays a session with one model.

    Args:
        model: the model's name at the endpoint, which is the policy's name.
        name: the agent's name, by which a policy claims its calls; the model's name when absent.
        base_url: the URL of an OpenAI-compatible endpoint; ``OPENAI_BASE_URL`` when absent.
        tls: returns the context that verifies the endpoint's certificate; None: openai's own settings decide.
        temperature: the temperature in training; evaluations and baselines take the most likely answer.
        max_tokens: limit of one answer.
        max_turns: how many turns it takes before it gives up; fewer if the conversation fills the model's context.
        history: how many earlier turns the model is shown; all when absent. With 0, every observation starts a new
            conversation, which is enough if each observation says everything. With tools, all turns are shown.
        instructions: the system message, in place of the environment's own.
        examples: messages between the system message and the task, for a model that needs examples.
        images: whether the model gets the observations' pictures. Turn it off for a policy that reads only text; the
            pictures are then recorded with the attempt, as the result of a tool, for people who look at the attempt.
    """

    def __init__(
        self,
        model: str,
        *,
        name: str | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        tls: Callable[[], SSLContext | None] = lambda: None,
        temperature: float = 1.0,
        max_tokens: int = 64,
        max_turns: int = 32,
        history: int | None = None,
        instructions: str | None = None,
        examples: Sequence[dict[str, Any]] = (),
        images: bool = False,
    ) -> None:
        try:
            import openai
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                'the agent that plays environments needs openai; run: pip install "lightning-trainer[environments]"'
            ) from error
        self._model = model
        self.name = name or model
        """A policy trains the calls if its ``agents`` claim this name."""
        self._openai = openai
        self._base_url = base_url
        self._api_key = api_key or os.environ.get("OPENAI_API_KEY") or "found-by-the-client"
        self._tls = tls
        self._clients: dict[SSLContext | None, OpenAI] = {}
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._max_turns = max_turns
        self._history = history
        self._instructions = instructions
        self._examples = list(examples)
        self._images = images
        self._said_full = False

    def __call__(self, session: Session) -> None:
        with lt.agent(self.name):
            opening, told = self._opening(session.observation), self._told({}, session.observation)
            turns: list[list[dict[str, Any]]] = []
            while not session.done and session.turns < self._max_turns:
                state = session.observation.state
                with lt.state(state) if state and state.strip() else nullcontext():
                    messages = [*opening, *chain.from_iterable(self._shown(turns, session)), *told]
                    try:
                        reply, response_id = self._reply(messages, session)
                    except self._openai.BadRequestError as error:
                        # Before the first turn there is nothing to keep: the task itself is too long for this model.
                        if session.turns == 0 or not any(words in f"{error.code} {error}" for words in _TOO_LONG):
                            raise
                        self._say_full(session, error)
                        return
                turns.append([*told, reply])
                told = self._told(reply, session.step(_action(reply)))
                if (reward := session.rewards[-1]) is not None:
                    lt.reward(reward, TURN_REWARD, response_id=response_id)

    def _say_full(self, session: Session, error: Exception) -> None:
        if not self._said_full:
            self._said_full = True
            _log.warning(
                "the conversation of %s filled the context after %d turns, which ends the attempt with what it has "
                "earned, as max_turns would; lower history, max_tokens or max_turns, or raise max_model_len (%s)",
                self.name,
                session.turns,
                error,
            )

    def _opening(self, observation: Observation) -> list[dict[str, Any]]:
        instructions = self._instructions if self._instructions is not None else observation.instructions
        system = [{"role": "system", "content": instructions}] if instructions else []
        return [*system, *self._examples]

    def _told(self, reply: dict[str, Any], observation: Observation) -> list[dict[str, Any]]:
        """Return the next messages: a result for every call, as the API requires; the rest as a user message."""
        observation_text = _sendable(observation.text)
        results = {result.id: _sendable(result.text) for result in observation.tool_results}
        calls = reply.get("tool_calls", ())
        messages: list[dict[str, Any]] = [
            {"role": "tool", "tool_call_id": call["id"], "content": results.get(call["id"], observation_text)}
            for call in calls
        ]
        text = observation_text if not calls or results else ""
        pictures = [{"type": "image_url", "image_url": {"url": image}} for image in observation.images]
        if pictures and not self._images:
            _record(observation.images)
            pictures = []
        if pictures:
            words = [{"type": "text", "text": text}] if text else []
            messages.append({"role": "user", "content": [*words, *pictures]})
        elif text or not reply:
            messages.append({"role": "user", "content": text})
        return messages

    def _shown(self, turns: list[list[dict[str, Any]]], session: Session) -> list[list[dict[str, Any]]]:
        if self._history is None or session.tools:  # a call and its result must stay together
            return turns
        return turns[len(turns) - self._history :] if self._history < len(turns) else turns

    def _reply(self, messages: list[dict[str, Any]], session: Session) -> tuple[dict[str, Any], str]:
        identity = current().identity
        greedy = identity is not None and identity.mode in ("evaluate", "baseline")
        request: dict[str, Any] = {"tools": tools_for_openai(session.tools)} if session.tools else {}
        request |= {"model": self._model, "messages": messages, "max_tokens": self._max_tokens}
        request["temperature"] = 0.0 if greedy else self._temperature
        answer = self._asked(request, session)
        message = answer.choices[0].message
        reply: dict[str, Any] = {"role": "assistant", "content": message.content or ""}
        if message.tool_calls:
            reply["tool_calls"] = [call.model_dump(include={"id", "type", "function"}) for call in message.tool_calls]
        return reply, answer.id

    def _asked(self, request: dict[str, Any], session: Session) -> Any:
        """Return the model's answer; a call that fails on the way is repeated, at most ``_RETRIES`` times and only
        while the attempt has time."""
        openai = self._openai
        on_the_way = (openai.APIConnectionError, openai.RateLimitError, openai.InternalServerError)
        for left in range(_RETRIES, -1, -1):
            if session.left_s <= 0:
                raise session.too_late
            try:
                return self._client().chat.completions.create(timeout=min(session.left_s, _LONGEST_CALL_S), **request)
            except on_the_way:
                if not left:
                    raise
                time.sleep(_RETRY_S)

    def _client(self) -> OpenAI:
        """Return the client that all attempts share, and make another one only if ``tls`` returns another context."""
        tls = self._tls()
        client = self._clients.get(tls)
        if client is None:
            client = self._openai.OpenAI(
                base_url=self._base_url,
                api_key=self._api_key,
                max_retries=0,  # each of openai's own retries would get all of the time that was left for the first try
                http_client=self._openai.DefaultHttpxClient(
                    verify=True if tls is None else tls,
                    trust_env=self._base_url is None or not on_this_machine(self._base_url),
                ),
            )
            self._clients = {tls: client}
        return client


def _sendable(text: str) -> str:
    """Return the text with a question mark in place of each surrogate: code may print one, and no API accepts it."""
    return text.encode(errors="replace").decode()


def _action(reply: dict[str, Any]) -> Action:
    calls = (
        ToolCall(call["function"]["name"], _arguments(call["function"]["arguments"]), call["id"])
        for call in reply.get("tool_calls", ())
    )
    return Action(reply["content"], tuple(calls))


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    return arguments if isinstance(arguments, dict) else {"_unreadable": text}


def _record(images: Sequence[str]) -> None:
    """Record pictures as a tool's result, in MCP's form; the store keeps them apart from the span."""
    with ToolSpan("screenshot", None, dict) as call:
        call.returned(lambda: [_as_content(image) for image in images])


def _as_content(image: str) -> dict[str, str]:
    kind, _, data = image.removeprefix("data:").partition(";base64,")
    return {"type": "image", "mimeType": kind, "data": data}
