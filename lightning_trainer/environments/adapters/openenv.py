"""A running OpenEnv server, over its wire protocol: ``openenv:http://127.0.0.1:8000``.

One WebSocket session (``/ws``) is one attempt. An action follows the server's own schema (``GET /schema``): it is a
call of the tool ``act`` with the schema's fields, or text for the field that ``field`` names, by default the only text
field. Source: https://github.com/meta-pytorch/OpenEnv, ``core/env_server`` (openenv-core 0.3).
"""

from __future__ import annotations

import json
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from websockets.sync.client import ClientConnection, connect

from lightning_trainer.environments.protocol import HELD_OUT, Action, Observation, Step, Task, Tool, ToolResult

_TOOL = "act"
_TIMEOUT_S = 30.0
_LONGEST = 1 << 24


class OpenEnv:
    """A session with an OpenEnv server.

    Args:
        url: the server's URL.
        field: the action's field for the model's text; by default its only text field.
        show: the observation's field to show; by default the whole observation as JSON.
    """

    def __init__(self, url: str, *, field: str | None = None, show: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError(f"{url!r} is not the URL of an OpenEnv server; write openenv:http://HOST:PORT")
        self._url = url.rstrip("/")
        self._socket_url = f"{'wss' if parts.scheme == 'https' else 'ws'}://{parts.netloc}{parts.path.rstrip('/')}/ws"
        self._show = show
        schema = self._get("/schema")["action"]
        fields = {name: kind for name, kind in schema.get("properties", {}).items() if name != "metadata"}
        self._fields = {"type": "object", "properties": fields, "required": schema.get("required", [])}
        if "$defs" in schema:
            self._fields["$defs"] = schema["$defs"]
        texts = [name for name, kind in fields.items() if kind.get("type") == "string"]
        self._field = field or (texts[0] if len(texts) == 1 else None)
        if field is not None and field not in fields:
            raise ValueError(f"the server's action has no field {field!r}; it has {', '.join(fields)}")
        about = self._get("/metadata")
        self.version = f"1-{about.get('name') or 'openenv'}-{about.get('version') or 'unversioned'}"
        self._socket: ClientConnection | None = None

    def reset(self, task: Task) -> Observation:
        self.close()
        self._socket = connect(self._socket_url, open_timeout=_TIMEOUT_S, max_size=_LONGEST)
        seed = 2 * task.seed + (task.split == HELD_OUT)
        answer = self._asked("reset", {"seed": seed, **{k: v for k, v in task.fields.items() if k != "id"}})
        tools = None if self._field else (Tool(_TOOL, "Act in the environment.", self._fields),)
        return Observation(self._told(answer), tools=tools)

    def step(self, action: Action) -> Step:
        call = action.tool_calls[0] if action.tool_calls else None
        if call is not None:
            fields: dict[str, Any] = dict(call.arguments)
        elif self._field is not None:
            fields = {self._field: action.text}
        else:
            return Step(Observation(f"Act by calling the tool {_TOOL}."), 0.0, False)
        try:
            answer = self._asked("step", fields)
        except ValueError as error:  # an action that the server rejects is the model's mistake
            text, reward, done = str(error), 0.0, False
        else:
            text, reward, done = self._told(answer), answer.get("reward"), bool(answer.get("done"))
        results = (ToolResult(call.id, text),) if call is not None else ()
        return Step(Observation("" if results else text, results), None if reward is None else float(reward), done)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _asked(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises:
            ValueError: the server refused an action.
            RuntimeError: the server failed.
        """
        assert self._socket is not None
        self._socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(self._socket.recv(_TIMEOUT_S))
        said = answer.get("data", {})
        if answer.get("type") != "error":
            return said
        message = f"{said.get('message')} ({said.get('code')})"
        if said.get("code") == "VALIDATION_ERROR":
            raise ValueError(message)
        raise RuntimeError(f"the OpenEnv server says: {message}")

    def _told(self, answer: dict[str, Any]) -> str:
        observation = answer.get("observation", {})
        if self._show is not None:
            return str(observation.get(self._show, ""))
        return json.dumps(observation) if isinstance(observation, dict) else str(observation)

    def _get(self, path: str) -> dict[str, Any]:
        with urllib.request.urlopen(self._url + path, timeout=_TIMEOUT_S) as response:
            return json.load(response)
