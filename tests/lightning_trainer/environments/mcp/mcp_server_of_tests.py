"""An MCP server with a tool for each difficulty that scenarios meet."""

import random
import sys

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("tests")
reads = ToolAnnotations(read_only_hint=True)
state = {"count": 0}


@server.tool(annotations=reads)
def list_rooms() -> list[dict]:
    """List the rooms."""
    return [{"room_id": number, "name": f"room {number}"} for number in (4, 9)]


@server.tool(annotations=reads)
def get_room(room_id: int) -> dict:
    """Look up a room."""
    if room_id not in (4, 9):
        raise ValueError(f"there is no room {room_id}")
    return {"room_id": room_id, "seats": room_id * 11, "open": room_id == 4}


@server.tool(annotations=reads)
def roll() -> dict:
    """Roll a die."""
    return {"eyes": random.random()}


@server.tool()
def count_up() -> dict:
    """Count."""
    state["count"] += 1
    return {"count": state["count"]}


if __name__ == "__main__":
    sys.exit(server.run())
