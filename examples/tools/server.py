"""A courier's depot as an MCP server: two tools, where the second asks for what the first one found.

    python examples/tools/server.py

Parcels and couriers are made in memory, the same every time; nothing that a tool does changes them.
"""

import random
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations
from pydantic import Field

TOWNS = ("Lima", "Oslo", "Cairo", "Hanoi", "Turin", "Perth", "Quito", "Accra")
FIRST_PARCEL, PARCELS = 200, 400
COURIERS = 40
READS = ToolAnnotations(read_only_hint=True)
Number = Annotated[int, Field(ge=FIRST_PARCEL, lt=FIRST_PARCEL + PARCELS)]

server = MCPServer("depot")
_rows = random.Random(20_261_124)
_couriers = {10 + number: {"van": 600 + number, "town": _rows.choice(TOWNS)} for number in range(COURIERS)}
_parcels = {
    FIRST_PARCEL + number: {"courier_id": _rows.choice(list(_couriers)), "weight": _rows.randint(100, 990)}
    for number in range(PARCELS)
}


@server.tool(annotations=READS)
def parcel(number: Number) -> dict:
    """Look up a parcel."""
    return _one("parcel", _parcels.get(number))


@server.tool(annotations=READS)
def courier(courier_id: int) -> dict:
    """Look up a courier."""
    return _one("courier", _couriers.get(courier_id))


def _one(kind: str, found: dict | None) -> dict:
    if found is None:
        raise ValueError(f"there is no such {kind}")
    return found


if __name__ == "__main__":
    server.run()
