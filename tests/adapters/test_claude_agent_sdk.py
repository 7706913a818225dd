"""Claude Code, which the Claude Agent SDK starts, gets the gateway's URL where a policy claims the agent.

The SDK's own package is tried by ``make frameworks``; here its transport is a stand-in with the same two names.
"""

import logging
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import lightning_instrumentation as lt
import pytest
from lightning_adapters import claude_agent_sdk as adapter
from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.errors import UnprovenDaemonError
from lightning_instrumentation.failures import failures
from lightning_instrumentation.routing import router as router_module
from lightning_instrumentation.routing.selection import Selection
from lightning_instrumentation.runtime import runtime

POINTED = {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9/rollouts/r/agents/writer"}


@dataclass(frozen=True)
class Options:
    env: dict[str, str] = field(default_factory=dict)


class CLIConnectionError(Exception):
    """The SDK's own."""


def refused(access: Access, timeout_s: float = 0.0) -> None:
    raise UnprovenDaemonError("someone else")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start Claude Code with options; return the environment that the options add."""
    monkeypatch.setattr(router_module, "REFRESH_S", 3600.0)
    monkeypatch.setattr(router_module, "FIRST_WAIT_S", 0.0)
    for name in ("ANTHROPIC_BASE_URL", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(failures, "_said", set())

    class SubprocessCLITransport:
        def __init__(self, options: Options) -> None:
            self._options = options

        async def connect(self) -> dict[str, str]:
            return self._options.env

    adapter.watch_transport(
        SimpleNamespace(SubprocessCLITransport=SubprocessCLITransport, CLIConnectionError=CLIConnectionError)
    )
    lt.shutdown(0.0)
    lt.init("http://127.0.0.1:9", spool_dir=tmp_path, token="daemon-token")
    begun = runtime()
    assert begun is not None
    monkeypatch.setattr(Access, "opened", lambda access, timeout_s=0.0: access.token)
    begun.router._answered.set()
    begun.router._fetch_at = float("inf")
    begun.router._select(Selection((("prose", ("writer",)),), frozenset({"/messages"})))
    yield lambda **env: SubprocessCLITransport(Options(env)).connect()
    lt.shutdown(0.0)


async def test_a_claimed_agents_calls_go_to_the_gateway_with_its_identity(start):
    with lt.rollout("fix", rollout_id="r/1"), lt.agent("writer"):
        env = await start(KEPT="1", ANTHROPIC_API_KEY="sk-secret", ANTHROPIC_AUTH_TOKEN="secret")
    assert (env["ANTHROPIC_BASE_URL"], env["KEPT"]) == ("http://127.0.0.1:9", "1")
    assert env["ANTHROPIC_API_KEY"] == "daemon-token"
    assert "secret" not in str(env)
    traceparent, baggage = sorted(env["ANTHROPIC_CUSTOM_HEADERS"].split("\n"), reverse=True)
    assert traceparent.startswith("traceparent: 00-")
    assert "gen_ai.agent.name=writer" in baggage
    assert "lightning.rollout.id=r%2F1" in baggage


@pytest.mark.parametrize(
    "variable",
    [
        *(f"CLAUDE_CODE_USE_{name}" for name in ("BEDROCK", "VERTEX", "FOUNDRY", "MANTLE", "GATEWAY")),
        *("CLAUDE_CODE_USE_ANTHROPIC_AWS", "CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD", "ANTHROPIC_UNIX_SOCKET"),
    ],
)
async def test_a_claimed_agents_calls_take_no_other_route(start, monkeypatch, variable):
    # Before: through the newer ones of these they went past the gateway, unrecorded, and nothing said so.
    monkeypatch.setenv(variable, "1")
    with lt.agent("writer"):
        assert (await start())[variable] == ""


async def test_no_proxy_gets_a_claimed_agents_calls_and_the_daemons_token(start):
    with lt.agent("writer"):
        env = await start(HTTP_PROXY="http://proxy:3128", NO_PROXY="example.com")
    assert env["NO_PROXY"] == env["no_proxy"] == "example.com,127.0.0.1"


async def test_where_no_texts_are_recorded_its_calls_say_so(start, monkeypatch):
    """Before: the gateway recorded all that Claude Code said and read."""
    line = "x-lightning-capture-content: 0"
    begun = runtime()
    assert begun is not None
    begun = replace(begun, settings=replace(begun.settings, capture_content=False))
    monkeypatch.setattr(adapter, "runtime", lambda: begun)
    with lt.agent("writer"):
        assert line in (await start())["ANTHROPIC_CUSTOM_HEADERS"].split("\n")
    assert (await start(**POINTED))["ANTHROPIC_CUSTOM_HEADERS"] == line
    told = await start(**POINTED, ANTHROPIC_CUSTOM_HEADERS="x-mine: 1")
    assert told["ANTHROPIC_CUSTOM_HEADERS"].split("\n") == ["x-mine: 1", line]


async def test_the_users_options_are_not_changed(start):
    given = Options()
    with lt.agent("writer"):
        await start()
    assert given.env == {}


async def test_of_other_agents_it_is_said_once_that_nothing_is_captured(start, caplog):
    with caplog.at_level(logging.ERROR), lt.agent("judge"):
        assert await start() == {}
        assert await start() == {}
    (said,) = [record.getMessage() for record in caplog.records if "Claude Code" in record.getMessage()]
    assert "no policy claims the agent 'judge'" in said
    assert "http://127.0.0.1:9/rollouts/ID/agents/NAME" in said


async def test_who_points_it_at_the_gateway_is_left_alone(start, caplog):
    with lt.agent("judge"):
        env = await start(**POINTED, CLAUDE_CODE_USE_BEDROCK="0", ANTHROPIC_AUTH_TOKEN="mine")
    beside = {"no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
    assert env == {**POINTED, "CLAUDE_CODE_USE_BEDROCK": "0", "ANTHROPIC_AUTH_TOKEN": "mine", **beside}
    with lt.uncaptured(), lt.agent("writer"):
        assert await start() == {}
    assert not [record for record in caplog.records if "Claude Code" in record.getMessage()]


async def test_no_proxy_gets_the_calls_that_the_user_points_at_the_gateway(start, monkeypatch):
    # Before: the proxy got them, with the daemon's token.
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:3128")
    env = await start(**POINTED, NO_PROXY="example.com")
    assert env["NO_PROXY"] == env["no_proxy"] == "example.com,127.0.0.1"
    with lt.uncaptured():  # likewise
        assert await start(**POINTED, NO_PROXY="example.com") == env


async def test_what_leads_past_the_gateway_that_the_user_names_is_said_once(start, monkeypatch, caplog):
    monkeypatch.setenv("CLAUDE_CODE_USE_BEDROCK", "1")
    before = lt.stats().failed.get(adapter.REASON, 0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert "CLAUDE_CODE_USE_BEDROCK" not in await start(**POINTED)
    (said,) = [record.getMessage() for record in caplog.records if "Claude Code" in record.getMessage()]
    assert "because CLAUDE_CODE_USE_BEDROCK is set: unset it" in said
    assert lt.stats().failed[adapter.REASON] == before + 2


async def test_what_is_not_proven_to_be_the_daemon_gets_no_call_and_no_token(start, monkeypatch):
    monkeypatch.setattr(Access, "opened", refused)
    with lt.agent("writer"):
        assert await start() == {}


async def test_where_its_calls_may_not_go_elsewhere_it_is_not_started(start, monkeypatch):
    begun = runtime()
    assert begun is not None
    monkeypatch.setattr(begun.router, "fallback", False)
    monkeypatch.setattr(Access, "opened", refused)
    with lt.agent("writer"), pytest.raises(CLIConnectionError, match="someone else"):
        await start()
