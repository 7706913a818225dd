"""The user's program as the agent of an environment: it acts over HTTP, and the environment scores it.

The program runs like any command of ``rollouts``. Its task has the first observation, the tools in the form that
OpenAI's API takes, and ``environment_url``: ``POST {environment_url}/step`` with ``{"text": ...}`` or ``{"tool_calls":
[{"name": ..., "arguments": {...}}]}`` answers ``{"observation": ..., "reward": ..., "done": ...}``.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lightning_trainer.environments.protocol import Action, ToolCall, to_json, tools_for_openai
from lightning_trainer.environments.session import Session
from lightning_trainer.rollouts.command import Command
from lightning_trainer.rollouts.task_file import FileTask

_LONGEST_BODY = 1 << 20
_NO_ATTEMPT = {"error": "there is no such attempt, or it has ended"}


@dataclass(frozen=True)
class _Attempt:
    session: Session
    acting: threading.Lock = field(default_factory=threading.Lock)
    """Held during a step: a program may act from several threads, and may end before its step has ended."""


class ProgramAgent:
    """An agent that is a command: ``EnvironmentRunner(..., agent=ProgramAgent(Command([...], endpoint=...)))``."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self.run_label = command.run_label
        self._attempts: dict[str, _Attempt] = {}
        attempts = self._attempts

        class Handler(_Steps):
            of = attempts

        self._server = _Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, name="environments", daemon=True).start()

    def __call__(self, session: Session) -> None:
        """Run the program for one session.

        Raises:
            CommandError: the program failed.
            TimeoutError: the program took too long.
        """
        # Any program that knows the URL can act in the session; others cannot guess it.
        secret = secrets.token_urlsafe(24)
        attempt = self._attempts[secret] = _Attempt(session)
        try:
            fields = {
                **session.task.fields,
                "id": session.task.id,
                "observation": to_json(session.observation),
                "tools": tools_for_openai(session.tools),
                "environment_url": f"http://127.0.0.1:{self._server.server_port}/{secret}",
            }
            self._command.run(FileTask(session.task.id, fields))  # the environment scores it, whatever is printed
        finally:
            del self._attempts[secret]
            with attempt.acting:  # a step must end before our caller gives the environment to the next attempt
                pass

    def stop(self) -> None:
        """Close the port."""
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    """All programs may connect at once; connections beyond this number are tried again after a second."""


class _Steps(BaseHTTPRequestHandler):
    of: dict[str, _Attempt]
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    """Head and body are two writes: the second one would wait 40 ms for the acknowledgment of the first."""
    timeout = 300

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the program is gone
            super().handle()

    def do_POST(self) -> None:
        _, secret, *rest = (*self.path.split("/"), "")
        attempt = self.of.get(secret)
        if attempt is None or rest[:1] != ["step"]:
            return self._say(404, _NO_ATTEMPT)
        try:
            length = int(self.headers.get("content-length", "-1"))
        except ValueError:
            length = -1
        if not 0 <= length <= _LONGEST_BODY:
            self.close_connection = True
            return self._say(413, {"error": f"a body needs a content-length of at most {_LONGEST_BODY}"})
        try:
            action = _action(json.loads(self.rfile.read(length)))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            said = '{"text": "..."} or {"tool_calls": [{"name": "...", "arguments": {}}]}'
            return self._say(422, {"error": f"an action is {said}; this one cannot be read: {error}"})
        with attempt.acting:
            status, said = _stepped(attempt.session, action) if secret in self.of else (404, _NO_ATTEMPT)
        self._say(status, said)

    def log_message(self, format: str, *args: object) -> None: ...

    def _say(self, status: int, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)


def _stepped(session: Session, action: Action) -> tuple[int, dict[str, Any]]:
    try:
        observation = session.step(action)
    except Exception as error:  # the program is told, and decides whether it fails
        return 409, {"error": f"{type(error).__name__}: {error}"}
    return 200, {"observation": to_json(observation), "reward": session.rewards[-1], "done": session.done}


def _action(body: Any) -> Action:
    calls = tuple(
        ToolCall(str(call["name"]), dict(call.get("arguments") or {}), str(call.get("id", number)))
        for number, call in enumerate(body.get("tool_calls") or ())
    )
    text = body.get("text", "")
    if not isinstance(text, str):
        raise TypeError("its text is not text")
    return Action(text, calls)
