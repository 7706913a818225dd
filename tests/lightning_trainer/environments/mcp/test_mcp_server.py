"""The client of an MCP server: all of its tools, results of every kind, and a server that goes away."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_trainer.environments import Task
from lightning_trainer.environments.adapters.mcp_tools import McpTools
from lightning_trainer.environments.mcp_server import McpServer, McpServerError
from lightning_trainer.environments.session import InProcess, Session

RAW = [sys.executable, str(Path(__file__).with_name("raw_mcp_server.py"))]


@pytest.fixture(scope="module")
def server() -> Iterator[McpServer]:
    with McpServer(RAW) as server:
        yield server


def test_tools_on_later_pages_are_found(server: McpServer) -> None:
    assert [tool.tool.name for tool in server.tools] == ["text", "resource", "link", "image", "die", "slow"]


@pytest.mark.parametrize(
    ("tool", "text"), [("text", "seen"), ("resource", "inside"), ("link", "file:///b"), ("image", "[image]")]
)
def test_a_result_is_its_text_or_that_of_its_resource(server: McpServer, tool: str, text: str) -> None:
    assert server.call(tool, {}).text == text


def test_what_the_server_refuses_is_no_end_of_the_server(server: McpServer) -> None:
    refused = server.call("no_such_tool", {})
    assert (refused.failed, refused.text) == (True, "error: there is no 'no_such_tool'")
    assert server.alive


def test_a_server_that_dies_fails_the_attempt_and_the_next_one_has_another() -> None:
    # Before: "error: Connection closed" was the result of every call of every later attempt, which then earned nothing.
    environment = McpTools()

    def session() -> Session:
        return Session(InProcess(environment), Task("mcp", "1", name="t", fields={"command": RAW, "answer": 1}))

    played = session()
    for _ in range(2):
        with pytest.raises(McpServerError, match="has gone away; it last said: there is nothing to read from"):
            played.call("die", {})
    assert session().call("text", {}) == "seen"
    environment.close()


@pytest.mark.process
def test_a_call_that_takes_longer_than_the_option_allows_says_so(server: McpServer) -> None:
    """Of the fixture is needed that the package has been imported, which a first start takes seconds for."""
    environment = McpTools(timeout_s=5)
    session = Session(InProcess(environment), Task("mcp", "1", name="t", fields={"command": RAW, "answer": 1}))
    with pytest.raises(McpServerError, match="did not answer slow within 5 s"):
        session.call("slow", {"seconds": 60})
    environment.close()


def test_a_server_that_does_not_start_says_why() -> None:
    with pytest.raises(McpServerError, match=r"cannot be used: .*; it last said: ModuleNotFoundError: No module named"):
        McpServer([sys.executable, "-c", "import no_such_module"])
