"""The base of all environments in a browser: the actions ``click(6)`` and ``type(5, "Ann")``, as text or as tools."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from selenium.common.exceptions import WebDriverException
from urllib3.exceptions import HTTPError

from lightning_trainer.environments.protocol import Action, Observation, Step, Task, Tool, ToolCall, ToolResult

_COMMAND = re.compile(
    r"""\b(?:(?P<click>click)\(\s*(?P<target>\d+)\s*\)|type\(\s*(?P<field>\d+)\s*,\s*"""
    r"""(?:"(?P<double>[^"\n]*)"|'(?P<single>[^'\n]*)'|(?P<bare>[^"'\n)]*))\s*\))"""
)
_INSTRUCTIONS = 'Do what the first line says. Answer with one action: click(NUMBER) or type(NUMBER, "text").'
_TOOLS = (
    Tool(
        "click",
        "Click an element.",
        {"type": "object", "properties": {"ref": {"type": "integer"}}, "required": ["ref"]},
    ),
    Tool(
        "type",
        "Put text into a field, or choose an entry of a list, in the place of what is there.",
        {
            "type": "object",
            "properties": {"ref": {"type": "integer"}, "text": {"type": "string"}},
            "required": ["ref", "text"],
        },
    ),
)
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_LONGEST_TEXT = 200


class NotPossibleError(Exception):
    """The model's action cannot be done on this page; the model is told the message."""


class BrowserEnvironment(ABC):
    """The base of environments in a browser: a page as text, an action, the page again.

    Args:
        max_turns: after this many turns the attempt is lost.
        tools: offer ``click`` and ``type`` as tools instead of text actions.
        screenshots: every observation has a picture of the page.
    """

    def __init__(self, *, max_turns: int, tools: bool, screenshots: bool) -> None:
        self._max_turns = max_turns
        self._tools = tools
        self._screenshots = screenshots
        self._turns = 0

    @abstractmethod
    def _open(self, task: Task) -> str:
        """Start, and return the page as text."""

    @abstractmethod
    def _click(self, ref: int) -> float | None:
        """Click an element; return the reward if that ended the attempt.

        Raises:
            NotPossibleError: there is no such element, or a click cannot reach it.
        """

    @abstractmethod
    def _type(self, ref: int, text: str) -> float | None:
        """Fill a field or choose from a list; return the reward if that ended the attempt.

        Raises:
            NotPossibleError: there is no such element or entry, or the element takes no text.
        """

    @abstractmethod
    def _page(self) -> str:
        """Return the page as text."""

    @abstractmethod
    def _screenshot(self) -> str:
        """Return a picture of the page in base64 (PNG)."""

    @abstractmethod
    def _close(self) -> None:
        """End the browser: this object is broken and will be replaced."""

    def reset(self, task: Task) -> Observation:
        with self._browsing():
            page = self._open(task)
            self._turns = 0
            return Observation(
                page,
                tools=_TOOLS if self._tools else None,
                instructions=_INSTRUCTIONS if not self._tools else "Do what the first line says with the tools.",
                state=page,
                images=self._pictures(),
            )

    def step(self, action: Action) -> Step:
        self._turns += 1
        with self._browsing():
            if action.tool_calls:
                return self._called(action.tool_calls)
            return self._answer(*self._said(action.text))

    def _said(self, text: str) -> tuple[str, float | None]:
        commands = list(_COMMAND.finditer(text))
        if not commands:
            return "That is not an action. ", None
        last = commands[-1]
        if last["click"]:
            return self._acted(int(last["target"]), None)
        words = next(last[kind] for kind in ("double", "single", "bare") if last[kind] is not None)
        return self._acted(int(last["field"]), words)

    def _called(self, calls: tuple[ToolCall, ...]) -> Step:
        results: list[tuple[str, str]] = []
        earned: float | None = None
        for call in calls:
            ref, text = call.arguments.get("ref"), call.arguments.get("text")
            if earned is not None:
                said = "It is over. "
            elif call.name == "click" and isinstance(ref, int):
                said, earned = self._acted(ref, None)
            elif call.name == "type" and isinstance(ref, int) and isinstance(text, str):
                said, earned = self._acted(ref, text)
            else:
                said = "That is not an action. "
            results.append((call.id, said))
        answer = self._answer("", earned)
        # The page is shown once, with the last call's result.
        told = [ToolResult(id, said.strip() or "ok") for id, said in results[:-1]]
        told.append(ToolResult(results[-1][0], results[-1][1] + answer.observation.text))
        shown = Observation("", tuple(told), state=answer.observation.state, images=answer.observation.images)
        return Step(shown, answer.reward, answer.done)

    def _acted(self, ref: int, text: str | None) -> tuple[str, float | None]:
        """Click, or type a text; return what the model is told before the page, and the reward if the attempt ended."""
        try:
            if text is None:
                return "", self._click(ref)
            # Selenium encodes keys in the private use area, and the driver takes nothing above the basic plane.
            if len(text) > _LONGEST_TEXT or any(ord(sign) > 0xFFFF or 0xE000 <= ord(sign) <= 0xF8FF for sign in text):
                return "That text cannot be typed. ", None
            return "", self._type(ref, text)
        except NotPossibleError as error:
            return f"{error} ", None

    def _answer(self, said: str, earned: float | None) -> Step:
        if earned is not None:
            told = Observation("Right." if earned >= 1.0 else "Wrong.", images=self._pictures())
            return Step(told, earned, True)
        page = self._page()
        over = self._turns >= self._max_turns
        told = Observation(said + ("Too many actions." if over else page), state=page, images=self._pictures())
        return Step(told, 0.0, over)

    def _pictures(self) -> tuple[str, ...]:
        return (f"data:image/png;base64,{self._screenshot()}",) if self._screenshots else ()

    @contextmanager
    def _browsing(self) -> Iterator[None]:
        try:
            yield
        except (WebDriverException, HTTPError) as error:
            end(error)
        except BaseException:
            self._close()
            raise


def no_element(ref: int) -> NotPossibleError:
    """Return the error for a number that no element on the page has."""
    return NotPossibleError(f"There is no element {ref}.")


def no_entry(ref: int, text: str) -> NotPossibleError:
    """Return the error for an entry that the list does not have."""
    return NotPossibleError(f"The list {ref} has no entry {json.dumps(text, ensure_ascii=False)}.")


def programs(environment: str, chromium: str | None, chromedriver: str | None) -> tuple[str, str]:
    """Return the paths of the browser and its driver, which Selenium would otherwise download.

    Args:
        environment: the name that the user wrote, for the error.
        chromium, chromedriver: paths that the user gave.

    Raises:
        ValueError: there is no such program.
    """
    return (
        _program(environment, "chromium", chromium, _BROWSERS),
        _program(environment, "chromedriver", chromedriver, ("chromedriver",)),
    )


def _program(environment: str, name: str, given: str | None, usual: tuple[str, ...]) -> str:
    found = given or next(filter(None, map(shutil.which, usual)), None)
    if found is None or not Path(found).exists():
        raise ValueError(
            f"there is no {name} {'at ' + given if given else 'on the PATH'}; install one (Debian: apt install "
            f"chromium chromium-driver), or write {environment}?{name}=/path/of/it"
        )
    return found


def end(error: Exception) -> NoReturn:
    """End this process, because its browser no longer answers; another process will replace it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    print(
        f"the browser does not answer: {type(error).__name__}: {lines[0] if lines else ''}", file=sys.stderr, flush=True
    )
    os._exit(1)
