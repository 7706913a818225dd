"""Claude Agent SDK: its calls are made by Claude Code, a separate program that it starts.

That program cannot be instrumented, but it takes a base URL. If a policy claims the agent that starts it, it gets the
gateway's URL, and its calls carry that agent's identity in headers; otherwise the user is told once that its calls are
not captured. The user's keys and headers are not for the gateway and are left out of its environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.hooks import patching
from lightning_instrumentation.routing import hosts
from lightning_instrumentation.routing.edge import Edge
from lightning_instrumentation.routing.hosts import HostTrust
from lightning_instrumentation.runtime import Runtime, runtime
from lightning_instrumentation.scope import Agent, current, current_agent
from lightning_instrumentation.settings import OFF
from lightning_instrumentation.zero_code.environ import beside_proxy

REASON = "not-captured:claude-code"
_BASE_URL = "ANTHROPIC_BASE_URL"
_HEADERS = "ANTHROPIC_CUSTOM_HEADERS"
_PATH = "/messages"
_OTHER_PROVIDERS = (
    *("CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX", "CLAUDE_CODE_USE_FOUNDRY", "CLAUDE_CODE_USE_MANTLE"),
    *("CLAUDE_CODE_USE_ANTHROPIC_AWS", "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD", "CLAUDE_CODE_USE_GATEWAY"),
)
"""If one of these is set, Claude Code's calls go to another provider, past any base URL; 2.1.332 knows these."""
_SOCKET = "ANTHROPIC_UNIX_SOCKET"
"""It has the same effect; for some purposes, Claude Code takes it as set even if it is empty."""
_OTHER_KEYS = ("ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN")


def watch_transport(module: Any) -> None:
    """Hook of ``claude_agent_sdk._internal.transport.subprocess_cli``."""
    patching.wrap(module, "SubprocessCLITransport.connect", _connect(module))


def _connect(module: Any) -> Callable[..., Any]:
    refused = getattr(module, "CLIConnectionError", ConnectionError)

    async def connect(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        async with Edge("", None, refused):
            guarded("claude-agent-sdk", _lead, instance)
        return await wrapped(*args, **kwargs)

    return connect


def _lead(transport: Any) -> None:
    started = runtime()
    if started is None:
        return
    options = transport._options
    own = {**os.environ, **options.env}
    captured = not current().uncaptured
    choice = hosts.choosing(capture_content=started.settings.capture_content)
    base_url = own.get(_BASE_URL)
    if base_url and started.hosts.trust(base_url) is HostTrust.DAEMON:  # the user has already pointed it at the daemon
        env = {**options.env, **beside_proxy(own, base_url)}  # no proxy gets the token, captured or not
        if captured:
            _tell_of_other_providers(own)
        if captured and choice:
            theirs = own.get(_HEADERS, "").rstrip("\n")
            env[_HEADERS] = f"{theirs}\n{_lines(choice)}" if theirs else _lines(choice)
        transport._options = replace(options, env=env)
        return
    if not captured:
        return
    agent = current_agent()
    policy = started.router.policy_of(None if agent is None else agent.name)
    if policy is None or _PATH not in started.router.paths:
        _tell(started, agent)
        return
    if not started.router.proven():
        return
    # A copy: the options are the user's, who may start another Claude Code with them.
    transport._options = replace(options, env={**options.env, **_environment(started, choice, own)})


def _environment(started: Runtime, choice: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    scope = current()
    headers = {"baggage": hosts.baggage(scope.identity, current_agent(), scope.state), **choice}
    if scope.span is not None:
        above = scope.span.get_span_context()
        headers["traceparent"] = hosts.traceparent(above.trace_id, above.span_id)
    ca_file = started.settings.ca_file
    return {
        _BASE_URL: started.settings.endpoint,
        "ANTHROPIC_API_KEY": started.router.access.token or "none",  # Claude Code does not start without a key
        **({} if ca_file is None else {"NODE_EXTRA_CA_CERTS": str(ca_file)}),
        _HEADERS: _lines(headers),
        **dict.fromkeys((*_OTHER_PROVIDERS, *_OTHER_KEYS, *([_SOCKET] if own.get(_SOCKET) else [])), ""),
        **beside_proxy(own, started.settings.endpoint),
    }


def _lines(headers: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in headers.items())


def _tell_of_other_providers(own: Mapping[str, str]) -> None:
    """Tell users which variable leads past their own base URL; only they know which of the two they mean."""
    others = [name for name in (*_OTHER_PROVIDERS, _SOCKET) if own.get(name, "").strip().lower() not in ("", *OFF)]
    if others:
        failures.count(REASON)
        failures.say(
            "claude-code-provider",
            f"Claude Code's calls do not go to {_BASE_URL}, and nothing of them is captured, because {others[0]} is "
            f'set: unset it, or give ClaudeAgentOptions(env=...) {others[0]} = ""',
        )


def _tell(started: Runtime, agent: Agent | None) -> None:
    name = None if agent is None else agent.name
    who = "nothing names the agent that starts it" if name is None else f"no policy claims the agent {name!r}"
    endpoint = started.settings.endpoint
    failures.note(
        REASON,
        "the Claude Agent SDK starts Claude Code, a program of its own, and nothing of its calls is captured here: "
        f"{who}. They are captured for an agent that a policy claims, or where ClaudeAgentOptions(env=...) has "
        f"{_BASE_URL} = {endpoint}/rollouts/ID/agents/NAME",
    )
