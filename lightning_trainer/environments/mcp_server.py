"""A synchronous client of one MCP server: ``with McpServer(["python", "server.py"]) as server:``.

The server is a command that uses standard input and output, or the URL of one that uses streamable HTTP. Source: Model
Context Protocol, https://modelcontextprotocol.io/specification.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Self

from lightning_trainer.environments.protocol import Tool
from lightning_trainer.errors import LightningError, MissingExtraError

_KEPT_OF_STDERR = 4096


class McpServerError(LightningError, RuntimeError):
    """The server does not start, does not answer in time, or disconnected."""


@dataclass(frozen=True)
class McpTool:
    """A tool of an MCP server."""

    tool: Tool
    reads_only: bool
    """Whether it declares that it changes nothing (``readOnlyHint``); a claim by the server, not a proof."""


@dataclass(frozen=True)
class McpResult:
    """The result of a tool call."""

    text: str
    """The text for the model."""
    failed: bool
    value: Any = field(default=None, hash=False)
    """The result as data: the structured content, or the text parsed as JSON; None if it is neither."""


class McpServer:
    """A connection to one MCP server.

    Args:
        command: program and arguments, or only a URL.
        timeout_s: limit of the start, and of each call.

    Raises:
        McpServerError: the command does not start, or is not an MCP server.
    """

    def __init__(self, command: Sequence[str], *, timeout_s: float = 30.0) -> None:
        self._command = list(command)
        self._timeout_s = timeout_s
        self._loop = asyncio.new_event_loop()
        self._ready: Future[list[McpTool]] = Future()
        self._ended: asyncio.Event | None = None
        self._session: Any = None
        self._stderr = b""
        self._hearing: threading.Thread | None = None
        self._serving: asyncio.Task[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="mcp", daemon=True)
        self._thread.start()
        try:
            self.tools = self._ready.result(timeout_s)
        except TimeoutError:
            self.close()
            raise McpServerError(
                f"the MCP server {self._shown} did not start within {timeout_s:g} s{self._last_words()}"
            ) from None

    @property
    def alive(self) -> bool:
        """Whether the server was connected when it was last heard from."""
        return self._thread.is_alive() and self._session is not None

    def call(self, name: str, arguments: Mapping[str, Any]) -> McpResult:
        """Call a tool. If the server refuses, the result says so.

        Raises:
            McpServerError: the server did not answer in time, or is gone.
        """
        result = None
        if self.alive:
            running = asyncio.run_coroutine_threadsafe(self._called(name, dict(arguments)), self._loop)
            try:
                result = running.result(self._timeout_s)
            except TimeoutError:
                running.cancel()
                raise McpServerError(
                    f"the MCP server {self._shown} did not answer {name} within {self._timeout_s:g} s"
                ) from None
        if result is None:
            self.close()
            raise McpServerError(f"the MCP server {self._shown} has gone away{self._last_words()}")
        return result

    def close(self) -> None:
        """Disconnect, and end a server that was started as a command."""
        if self._ended is not None and self._thread.is_alive():
            # A server that is still starting does not check the event.
            serving, end = self._serving, self._ended.set
            self._loop.call_soon_threadsafe(end if self._session is not None or serving is None else serving.cancel)
        self._thread.join(10.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def _shown(self) -> str:
        return " ".join(self._command)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._served())
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(self._refusal(error))
        finally:
            self._session = None

    def _refusal(self, error: BaseException) -> LightningError:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, ModuleNotFoundError) and error.name == "mcp":
            return MissingExtraError('MCP servers need mcp; run: pip install "lightning-trainer[environments]"')
        return McpServerError(
            f"the MCP server {self._shown} cannot be used: {type(error).__name__}: {error}{self._last_words()}"
        )

    def _hear(self, descriptor: int) -> None:
        with open(descriptor, "rb", buffering=0) as stderr:
            while piece := stderr.read(65536):
                self._stderr = (self._stderr + piece)[-_KEPT_OF_STDERR:]

    def _last_words(self) -> str:
        """Return the last line that the server wrote to its standard error, as the end of a sentence."""
        if self._hearing is not None:
            self._hearing.join(1.0)  # the thread ends with the server, unless the server left something running
        lines = [line.strip() for line in self._stderr.decode(errors="replace").splitlines() if line.strip()]
        return f"; it last said: {lines[-1][:300]}" if lines else ""

    async def _served(self) -> None:
        from mcp import ClientSession

        self._ended = asyncio.Event()
        self._serving = asyncio.current_task()
        async with AsyncExitStack() as stack:
            streams = await stack.enter_async_context(self._streams(stack))
            session = await stack.enter_async_context(ClientSession(streams[0], streams[1]))
            await session.initialize()
            tools = await self._listed(session)
            self._session = session
            self._ready.set_result(tools)
            await self._ended.wait()

    def _streams(self, stack: AsyncExitStack) -> Any:
        if len(self._command) == 1 and self._command[0].startswith(("http://", "https://")):
            from mcp.client import streamable_http

            return streamable_http.streamable_http_client(self._command[0])
        from mcp import StdioServerParameters
        from mcp.client.stdio import stdio_client

        ours, theirs = os.pipe()
        self._hearing = threading.Thread(target=self._hear, args=(ours,), name="mcp stderr", daemon=True)
        self._hearing.start()
        stderr = stack.enter_context(open(theirs, "w"))  # noqa: SIM115
        program, *arguments = self._command
        return stdio_client(StdioServerParameters(command=program, args=arguments, cwd=os.getcwd()), errlog=stderr)

    async def _listed(self, session: Any) -> list[McpTool]:
        from mcp.types import PaginatedRequestParams

        listed: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            page = None if cursor is None else PaginatedRequestParams(cursor=cursor)
            # Versions 1 and 2 of the package name fields differently; the names on the wire are the same.
            said = (await session.list_tools(params=page)).model_dump(by_alias=True)
            listed += said["tools"]
            cursor = said.get("nextCursor")
            if cursor is None:
                break
        tools = []
        for tool in listed:
            annotations = tool.get("annotations") or {}
            schema = tool.get("inputSchema") or {"type": "object", "properties": {}}
            tools.append(
                McpTool(
                    Tool(tool["name"], tool.get("description") or "", schema), bool(annotations.get("readOnlyHint"))
                )
            )
        return tools

    async def _called(self, name: str, arguments: dict[str, Any]) -> McpResult | None:
        """Call a tool, and return its result; None if the server is gone."""
        session = self._session
        try:
            said = (await session.call_tool(name, arguments)).model_dump(by_alias=True)
        except Exception as error:  # an unknown tool, arguments that its schema does not allow, or a lost connection
            try:
                await session.list_tools()  # this worked when the server started: if it fails, the server is gone
            except Exception:
                return None
            return McpResult(f"error: {error}", True)
        text = "\n".join(_text(part) for part in said.get("content") or ())
        value = said.get("structuredContent")
        if isinstance(value, dict) and set(value) == {"result"}:
            value = value["result"]  # Python's servers wrap results that are not objects this way
        if value is None:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = None
        return McpResult(text, bool(said.get("isError")), value)


def _text(part: Mapping[str, Any]) -> str:
    """Return a part of a result for the model: its text, its resource's text, or its URI; else its type in brackets."""
    resource = part.get("resource") or {}
    text = part.get("text", resource.get("text", part.get("uri")))
    return f"[{part.get('type')}]" if text is None else str(text)
