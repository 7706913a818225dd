"""The scripted engine's answers on ``/v1/chat/completions``, field for field as vLLM gives them.

A model named ``sized:PROMPT:SAMPLED`` answers with that many token ids; any other is scripted by the messages: the
system message says ``AGENT[name]``, any message ``ROLLOUT[id]``, and a tool that was not used yet is called first.
``CALL[tool argument=value]`` in a message names the only call that is made, ``SAY<text>`` the text of the answer.
"""

import itertools
import json
import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_AGENT = re.compile(r"AGENT\[([^\]]+)\]")
_ROLLOUT = re.compile(r"ROLLOUT\[([^\]]+)\]")
_CALL = re.compile(r"CALL\[(\w+) (\w+)=([^\]]+)\]")
_SAY = re.compile(r"SAY<(.+?)>", re.DOTALL)
_numbers = itertools.count(1)
_random = random.Random(0)
_VOCABULARY = 150_000


@dataclass(frozen=True, slots=True)
class Script:
    """One answer: what is sampled, and the agent and rollout to which the engine attributes the call."""

    response_id: str
    agent: str | None
    rollout: str | None
    text: str | None
    call: dict[str, Any] | None
    """A tool call: ``id``, ``name`` and ``arguments`` (JSON text)."""
    words: list[str]
    prompt_ids: list[int]
    response_ids: list[int]

    def truth(self) -> dict[str, Any]:
        return {
            "response_id": self.response_id,
            "agent": self.agent,
            "rollout": self.rollout,
            "prompt_ids": self.prompt_ids,
            "response_ids": self.response_ids,
            "logprobs": [logprob(number) for number in range(len(self.words))],
        }


@lru_cache
def _sized(prompt: int, sampled: int) -> tuple[list[int], list[int], list[str]]:
    source = random.Random(prompt * 31 + sampled)
    ids = [source.randrange(_VOCABULARY) for _ in range(prompt + sampled)]
    return ids[:prompt], ids[prompt:], [f"word{number} " for number in range(sampled)]


def sized_script(model: str) -> Script:
    _, prompt, sampled = model.split(":")
    prompt_ids, response_ids, words = _sized(int(prompt), int(sampled))
    return Script(f"chatcmpl-{next(_numbers):09d}", None, None, "".join(words), None, words, prompt_ids, response_ids)


def script(
    system: str, everything: str, tools: list[str], called: list[str], properties: dict[str, list[str]]
) -> Script:
    """Decide on an answer.

    Args:
        system: text of the system messages.
        everything: text of all messages.
        tools: names of the tools on offer.
        called: names of the tools that were called already.
        properties: names of the arguments of each tool.
    """
    agent, rollout = (_first(pattern, text) for pattern, text in ((_AGENT, system), (_ROLLOUT, everything)))
    number = next(_numbers)
    wanted = next((name for name in tools if name not in called), None)
    arguments = json.dumps(dict.fromkeys(properties.get(wanted, ()) if wanted else (), "Paris"))
    if (named := _CALL.search(everything)) is not None:
        wanted, arguments = named[1] if named[1] in tools and not called else None, json.dumps({named[2]: named[3]})
    said = _first(_SAY, everything)
    text, call = said or f"answer {number} of {agent} is done .", None
    if wanted is not None:
        text, call = None, {"id": f"call_{number}", "name": wanted, "arguments": arguments}
    words = re.findall(r"\S+\s*", f"{text} " if text else f"call {wanted} now ")
    return Script(
        f"chatcmpl-{number:09d}",
        agent,
        rollout,
        text,
        call,
        words,
        [_random.randrange(_VOCABULARY) for _ in range(12)],
        [_random.randrange(_VOCABULARY) for _ in words],
    )


def _first(pattern: re.Pattern[str], text: str) -> str | None:
    found = pattern.search(text)
    return found[1] if found else None


def chat_script(body: dict[str, Any]) -> Script:
    model = str(body.get("model", ""))
    if model.startswith("sized:"):
        return sized_script(model)
    messages = body.get("messages") or []
    functions = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
    return script(
        " ".join(str(m.get("content")) for m in messages if m.get("role") in ("system", "developer")),
        " ".join(str(m.get("content")) for m in messages),
        [function["name"] for function in functions],
        [call["function"]["name"] for m in messages for call in m.get("tool_calls") or ()],
        {f["name"]: list((f.get("parameters") or {}).get("properties") or {}) for f in functions},
    )


def logprob(number: int) -> float:
    """Return the log-probability, in nats, of an answer's token of that number."""
    return -0.01 * (number % 90 + 1)


def _logprob(number: int, word: str) -> dict[str, Any]:
    return {"token": word, "logprob": logprob(number), "bytes": list(word.encode()), "top_logprobs": []}


def _usage(script: Script) -> dict[str, int]:
    prompt, sampled = len(script.prompt_ids), len(script.response_ids)
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}


def _tool_calls(script: Script) -> list[dict[str, Any]]:
    if script.call is None:
        return []
    function = {"name": script.call["name"], "arguments": script.call["arguments"]}
    return [{"id": script.call["id"], "type": "function", "function": function}]


def completion(script: Script, body: dict[str, Any]) -> dict[str, Any]:
    asked_ids, asked_logprobs = bool(body.get("return_token_ids")), bool(body.get("logprobs"))
    return {
        "id": script.response_id,
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": body.get("model"),
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": script.text,
                    "refusal": None,
                    "tool_calls": _tool_calls(script),
                },
                "logprobs": {"content": [_logprob(i, word) for i, word in enumerate(script.words)]}
                if asked_logprobs
                else None,
                "finish_reason": "tool_calls" if script.call else "stop",
                "token_ids": script.response_ids if asked_ids else None,
            }
        ],
        "usage": _usage(script),
        "prompt_token_ids": script.prompt_ids if asked_ids else None,
    }


def chunks(script: Script, body: dict[str, Any]) -> list[dict[str, Any]]:
    asked_ids, asked_logprobs = bool(body.get("return_token_ids")), bool(body.get("logprobs"))
    head = {
        "id": script.response_id,
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": body.get("model"),
    }

    def chunk(delta: dict[str, Any], token: int | None, finish: str | None = None, **extra: Any) -> dict[str, Any]:
        with_token = token is not None
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": {"content": [_logprob(token, script.words[token])]} if with_token and asked_logprobs else None,
            "finish_reason": finish,
            "token_ids": [script.response_ids[token]] if with_token and asked_ids else None,
        }
        return {**head, "choices": [choice], **extra}

    said = [
        chunk({"role": "assistant", "content": ""}, None, prompt_token_ids=script.prompt_ids if asked_ids else None)
    ]
    last = len(script.words) - 1
    for number, word in enumerate(script.words):
        finish = ("tool_calls" if script.call else "stop") if number == last else None
        if script.call is None:
            said.append(chunk({"content": word}, number, finish))
        elif number == last:
            said.append(chunk({"tool_calls": [{"index": 0, **_tool_calls(script)[0]}]}, number, finish))
        elif asked_ids or asked_logprobs:
            # The tool parser swallows tokens until the call is whole; such a chunk is sent only for its ids.
            said.append(chunk({}, number))
    if (body.get("stream_options") or {}).get("include_usage"):
        said.append({**head, "choices": [], "usage": _usage(script)})
    return said
