"""Requests to the JSON routes: rewards, ends of rollouts, and the gateway's four APIs; valid ones and damaged ones."""

import random
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from benchmarks.hostile.fuzz.mutation import mutated

_IDS = ("", "x", "a/b", "../..", "%00", "\x00", "é" * 80, "x" * 2000, "r-0", "a b", "?q=1", "\u202e", "..;/")
_JSON = {"content-type": "application/json"}
_TOOL = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "adds",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
_CHAT: dict[str, Any] = {
    "model": "math",
    "messages": [
        {"role": "system", "content": "You calculate."},
        {"role": "user", "content": [{"type": "text", "text": "1+1?"}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "2"},
    ],
    "tools": [_TOOL],
    "tool_choice": "auto",
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    "temperature": 0.7,
    "top_p": 0.9,
    "max_tokens": 16,
    "n": 1,
    "stop": ["\n"],
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": -100},
    "stream": False,
    "stream_options": {"include_usage": True},
    "seed": 3,
    "reasoning_effort": "low",
}
_COMPLETION: dict[str, Any] = {
    "model": "math",
    "prompt": [[1, 2, 3]],
    "max_tokens": 8,
    "n": 1,
    "logprobs": 1,
    "echo": False,
    "stop": "x",
    "temperature": 1.0,
    "suffix": None,
}
_RESPONSE: dict[str, Any] = {
    "model": "math",
    "instructions": "You calculate.",
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1+1?"}]},
        {"type": "function_call", "call_id": "c1", "name": "calculator", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "run", "input": "print(2)"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "2"},
        {"type": "reasoning", "id": "rs_1", "summary": []},
    ],
    "tools": [
        {"type": "function", "name": "calculator", "parameters": {"type": "object", "properties": {}}},
        {"type": "custom", "name": "run", "description": "runs", "format": {"type": "text"}},
    ],
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
    "max_output_tokens": 16,
    "temperature": 0.5,
    "stream": False,
    "include": ["message.output_text.logprobs"],
    "reasoning": {"effort": "low"},
}
_MESSAGE: dict[str, Any] = {
    "model": "math",
    "max_tokens": 16,
    "system": [{"type": "text", "text": "You calculate.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "1+1?"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "calculator", "input": {"a": 1}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "2"}]}],
        },
    ],
    "tools": [{"name": "calculator", "description": "adds", "input_schema": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "auto"},
    "stop_sequences": ["x"],
    "temperature": 1.0,
    "thinking": {"type": "disabled"},
    "stream": False,
}
_CALLS = (
    ("/chat/completions", _CHAT),
    ("/completions", _COMPLETION),
    ("/responses", _RESPONSE),
    ("/messages", _MESSAGE),
    ("/messages/count_tokens", _MESSAGE),
    ("/responses/input_tokens", _RESPONSE),
)
_BAGGAGE = (
    "",
    "lightning.rollout.id=r-1,lightning.attempt.id=a",
    "%%%",
    "=,=;",
    "x" * 4000,
    "gen_ai.agent.name=solver",
)
_SETTINGS = (
    *("temperature=0.7&metadata.split=train", "top_k=-1", "seed=9999999999999999999", "temperature=nan", "metadata.=x"),
    *("", "&&", "max_tokens=1e9", "n=3", "=", "metadata.a=" + "x" * 2000),
)
_PARENTS = (
    "",
    "00-" + "1" * 32 + "-" + "2" * 16 + "-01",
    "00-" + "0" * 32 + "-" + "0" * 16 + "-00",
    "ff-zz",
    "x" * 500,
)


def reward(names: list[str], rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers."""
    name = rng.choice(names)
    body: dict[str, Any] = {"value": rng.choice((1.0, 0, -1e6, 1e6, 0.5)), "name": "judge", "explanation": "because"}
    body |= rng.choice(({}, {"attempt_id": name}, {"agent": "solver"}, {"id": f"mine-{rng.randrange(99)}"}))
    path = rng.choice(
        (
            f"/rollouts/{_id(f'r-{name}', rng)}/reward",
            f"/lightning/rollouts/{_id(f'r-{name}', rng)}/rewards",
            f"/lightning/responses/{_id(f'response-{name}', rng)}/rewards",
        )
    )
    return path, mutated(body, rng), _JSON


def end(names: list[str], rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers."""
    name = rng.choice(names)
    body: dict[str, Any] = {"reward": 1.0, "task_id": "t", "group_id": "g", "mode": "train", "attempt_id": name}
    body |= rng.choice(({}, {"error": "it failed"}, {"reward": None}))
    return f"/rollouts/{_id(f'r-{name}', rng)}/end", mutated(body, rng), _JSON


def call(names: list[str], rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of a model call."""
    path, body = rng.choice(_CALLS)
    path = base(rng, names) + path
    if rng.random() < 0.2:
        body = {**body, "stream": True}
    headers = dict(_JSON)
    if rng.random() < 0.3:
        headers |= {"baggage": rng.choice(_BAGGAGE), "traceparent": rng.choice(_PARENTS)}
    if rng.random() < 0.05:
        headers["content-type"] = rng.choice(("text/plain", "", "application/json;charset=utf-7"))
    return path, mutated(body, rng), headers


def base(rng: random.Random, names: Sequence[str] = ("r",), *, plain: float = 0.6) -> str:
    """Return a base URL's path; unless it is plain, it may name a rollout, an agent, and settings."""
    if rng.random() < plain:
        return "/v1"
    agent = rng.choice(("", f"/agents/{_id('solver', rng)}"))
    settings = rng.choice(("", f"/with/{quote(rng.choice(_SETTINGS), safe='')}"))
    return f"/rollouts/{_id(rng.choice(names), rng)}{agent}{settings}/v1"


def _id(usual: str, rng: random.Random) -> str:
    return quote(usual if rng.random() < 0.8 else rng.choice(_IDS), safe=rng.choice(("", "/")))
