"""An MCP server without a library: a page of its tools for each of them, and results of every kind."""

import json
import sys
import time
from typing import Any

RESULTS = {
    "text": [{"type": "text", "text": "seen"}],
    "resource": [{"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}],
    "link": [{"type": "resource_link", "uri": "file:///b", "name": "b"}],
    "image": [{"type": "image", "data": "aGk=", "mimeType": "image/png"}],
    "die": [],
    "slow": [{"type": "text", "text": "ok"}],
}
TOOLS = tuple(RESULTS)


def answer(method: str, given: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        about = {"serverInfo": {"name": "raw", "version": "1"}, "capabilities": {"tools": {}}}
        return {**about, "protocolVersion": given["protocolVersion"]}
    if method == "tools/list":
        number = int(given.get("cursor") or 0)
        schema = {"name": TOOLS[number], "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
        more = {"nextCursor": str(number + 1)} if number + 1 < len(TOOLS) else {}
        return {"tools": [schema], **more}
    if method == "tools/call":
        if given["name"] == "die":
            sys.exit("there is nothing to read from")
        if given["name"] == "slow":
            time.sleep(float(given["arguments"]["seconds"]))
        return {"content": RESULTS[given["name"]]}
    raise KeyError(method)


for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        try:
            said = {"result": answer(asked["method"], asked.get("params") or {})}
        except KeyError as error:
            said = {"error": {"code": -32601, "message": f"there is no {error}"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
