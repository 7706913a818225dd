"""MiniWoB++'s small web pages in a headless Chromium: ``miniwob:click-button``, ``miniwob:login-user``.

The page is described by its visible elements, one per line, each with a number to act on, as Playwright's snapshots
have it: ``button "Send" [6]``. Actions are ``click(6)`` and ``type(5, "Ann")``. The pages come with the package.
Source: Liu et al. 2018, arXiv 1802.08802; https://github.com/Farama-Foundation/miniwob-plusplus (MIT).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any, NoReturn

import miniwob
from miniwob.action import ActionTypes
from miniwob.environment import MiniWoBEnvironment
from miniwob.reward import get_raw_reward
from selenium.common.exceptions import WebDriverException
from urllib3.exceptions import HTTPError

from lightning_trainer.environments.protocol import Action, Observation, Step, Task, Tool, ToolResult

_PAGES = Path(miniwob.__file__).parent / "html" / "miniwob"
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
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
_FIELDS = ("input", "textarea")
_LONGEST_TEXT = 200
_CANDIDATES = 64
"""Variants of a page that are tried to find one of the task's split."""

# The runner limits an attempt's time: the pages' own ten seconds may be too short for a model.
_NO_CLOCK = "core.EPISODE_MAX_TIME = 0x7fffffff;"
_EMPTY = "const e = core.previousDOMInfo[arguments[0]]; if ('value' in e) e.value = '';"
_LISTS = """
return Object.fromEntries(Object.entries(core.previousDOMInfo)
    .filter(([ref, element]) => element instanceof HTMLSelectElement)
    .map(([ref, element]) => [ref, [element.value, Array.from(element.options, option => option.text)]]));
"""
_CHOOSE = """
const list = core.previousDOMInfo[arguments[0]];
const found = Array.from(list.options).findIndex(option => option.text.trim() === arguments[1].trim());
if (found >= 0) { list.selectedIndex = found; list.dispatchEvent(new Event('change', {bubbles: true})); }
return found >= 0;
"""


class MiniWoB:
    """One of MiniWoB++'s pages as text.

    Args:
        page: of MiniWoB++, such as ``click-button``; only pages that clicking and typing can solve.
        max_turns: after so many turns the attempt is lost.
        tools: offer ``click`` and ``type`` as tools instead of text actions.
        wait_ms: wait after each action, for animated pages.
        chromium, chromedriver: paths of the browser and its driver; by default those on the PATH.

    Raises:
        ValueError: there is no such page, no browser, or no driver.
    """

    version = f"2-miniwob-{version_of('miniwob')}"

    def __init__(
        self,
        page: str,
        *,
        max_turns: int = 8,
        tools: bool = False,
        wait_ms: float = 0.0,
        chromium: str | None = None,
        chromedriver: str | None = None,
    ) -> None:
        if not re.fullmatch(r"[a-z0-9-]+", page) or not (_PAGES / f"{page}.html").exists():
            raise ValueError(f"MiniWoB++ has no page {page!r}; its pages are at https://miniwob.farama.org")
        # Otherwise Selenium would download a browser.
        os.environ["MINIWOB_CHROME_BINARY"] = _program("chromium", chromium, _BROWSERS)
        os.environ["MINIWOB_CHROMEDRIVER"] = _program("chromedriver", chromedriver, ("chromedriver",))
        self._max_turns = max_turns
        self._tools = tools
        try:
            self._world = MiniWoBEnvironment(page, reward_processor=get_raw_reward, wait_ms=wait_ms)
        except (WebDriverException, HTTPError) as error:
            _end(error)
        self._kinds = self._world.action_space_config.action_types

    def reset(self, task: Task) -> Observation:
        with self._browsing():
            page = task.of_split(self._versions(task), patience=_CANDIDATES)
        self._turns = 0
        return Observation(
            page,
            tools=_TOOLS if self._tools else None,
            instructions=_INSTRUCTIONS if not self._tools else "Do what the first line says with the tools.",
            state=page,
        )

    def step(self, action: Action) -> Step:
        self._turns += 1
        with self._browsing():
            if action.tool_calls:
                return self._called(action)
            return self._answer(*self._said(action.text))

    @contextmanager
    def _browsing(self) -> Iterator[None]:
        try:
            yield
        except (WebDriverException, HTTPError) as error:
            _end(error)
        except BaseException:
            self._world.close()  # the next object has its own browser
            raise

    def _versions(self, task: Task) -> Iterator[str]:
        for number in range(10 * _CANDIDATES):
            self._script(_NO_CLOCK)
            seed = task.random(number).randrange(2**31)
            self._seen, _ = self._world.reset(seed=seed, options={"record_screenshots": False})
            yield self._told()

    def _said(self, text: str) -> tuple[str, float, bool]:
        commands = list(_COMMAND.finditer(text))
        if not commands:
            return "That is not an action. ", 0.0, False
        last = commands[-1]
        if last["click"]:
            return self._click(int(last["target"]))
        words = next(last[kind] for kind in ("double", "single", "bare") if last[kind] is not None)
        return self._type(int(last["field"]), words)

    def _called(self, action: Action) -> Step:
        results, earned, done = [], 0.0, False
        for call in action.tool_calls:
            ref, text = call.arguments.get("ref"), call.arguments.get("text")
            if done:
                said = "It is over. "
            elif call.name == "click" and isinstance(ref, int):
                said, reward, done = self._click(ref)
                earned += reward
            elif call.name == "type" and isinstance(ref, int) and isinstance(text, str):
                said, reward, done = self._type(ref, text)
                earned += reward
            else:
                said = "That is not an action. "
            results.append((call.id, said))
        answer = self._answer("", earned, done)
        # The page is shown once, with the last call.
        told = [ToolResult(id, said.strip() or "ok") for id, said in results[:-1]]
        told.append(ToolResult(results[-1][0], results[-1][1] + answer.observation.text))
        return Step(Observation("", tuple(told), state=answer.observation.state), answer.reward, answer.done)

    def _answer(self, said: str, reward: float, done: bool) -> Step:
        if done:
            return Step(Observation("Right." if reward >= 1.0 else "Wrong."), reward, True)
        page = self._told()
        over = self._turns >= self._max_turns
        return Step(Observation(said + ("Too many actions." if over else page), state=page), reward, over)

    def _click(self, ref: int) -> tuple[str, float, bool]:
        return self._acted(ref, ActionTypes.CLICK_ELEMENT)

    def _type(self, ref: int, text: str) -> tuple[str, float, bool]:
        # Selenium encodes keys in the private use area, and the driver accepts no character above the basic plane.
        if len(text) > _LONGEST_TEXT or any(ord(sign) > 0xFFFF or 0xE000 <= ord(sign) <= 0xF8FF for sign in text):
            return "That text cannot be typed. ", 0.0, False
        if self._element(ref).startswith("select"):
            if not self._script(_CHOOSE, ref, text):
                return f"The list {ref} has no entry {json.dumps(text, ensure_ascii=False)}. ", 0.0, False
            return self._acted(ref, ActionTypes.NONE)
        if self._element(ref).startswith(_FIELDS):
            self._script(_EMPTY, ref)
        return self._acted(ref, ActionTypes.FOCUS_ELEMENT_AND_TYPE_TEXT, text)

    def _acted(self, ref: int, kind: ActionTypes, text: str = "") -> tuple[str, float, bool]:
        if not self._element(ref):
            return f"There is no element {ref}. ", 0.0, False
        acted = {"action_type": self._kinds.index(kind), "ref": ref, "text": text}
        self._seen, reward, done, _, _ = self._world.step(acted)
        # The page gives negative rewards for mistakes; here a wrong end counts no less than none.
        return "", max(0.0, float(reward)) if done else 0.0, bool(done)

    def _element(self, ref: int) -> str:
        """Return the kind of the element shown under this number; empty if there is none."""
        return next((one["tag"].lower() for one in self._seen["dom_elements"] if one["ref"] == ref and ref > 0), "")

    def _told(self) -> str:
        elements = self._seen["dom_elements"]
        lists = self._script(_LISTS) if any(one["tag"].lower() == "select" for one in elements) else {}
        return "\n".join([self._seen["utterance"], "", *_lines(elements, lists)])

    def _script(self, script: str, *arguments: Any) -> Any:
        return self._world.instance.driver.execute_script(script, *arguments)


def _lines(elements: tuple[dict[str, Any], ...], lists: Mapping[str, Any]) -> list[str]:
    """Return the visible part of a page: leaves and lists; boxes that only contain others are left out."""
    lines: list[tuple[list[str], list[str]]] = []
    """Each element's words, and what follows: the number comes last, as in an answer that says first what it clicks."""
    for element in elements:
        tag, text = element["tag"].lower(), " ".join(element["text"].split())
        if tag == "t":
            if lines and lines[-1][0][0] in ("input_checkbox", "input_radio"):
                lines[-1][0].append(text)  # it shows the current selection
            else:
                lines.append(([text], []))
            continue
        value, entries = lists.get(str(element["ref"]), (element["value"], []))
        if not (element["flags"][3] or entries):
            continue
        words = [tag]
        if element["id"]:
            words.append(f"#{element['id']}")
        elif not text:
            words += [f".{name}" for name in element["classes"].split()]
        if tag in ("input_checkbox", "input_radio"):
            words += ["checked"] if value == "True" else []
        elif text or value or tag.startswith(_FIELDS):
            words.append(json.dumps(text or value, ensure_ascii=False))
        elif element["bg_color"][3] > 0:
            words.append("#" + "".join(f"{round(255 * float(part)):02x}" for part in element["bg_color"][:3]))
        lines.append((words, [f"[{element['ref']}]", *([f"of: {', '.join(entries)}"] if entries else [])]))
    return [" ".join(words + after) for words, after in lines]


def _program(name: str, given: str | None, usual: tuple[str, ...]) -> str:
    found = given or next(filter(None, map(shutil.which, usual)), None)
    if found is None or not Path(found).exists():
        raise ValueError(
            f"there is no {name} {'at ' + given if given else 'on the PATH'}; install one (Debian: apt install "
            f"chromium chromium-driver), or write miniwob:PAGE?{name}=/path/of/it"
        )
    return found


def _end(error: Exception) -> NoReturn:
    """End a process whose browser is gone: nothing of it is left, and another process starts afresh."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    print(
        f"the browser does not answer: {type(error).__name__}: {lines[0] if lines else ''}", file=sys.stderr, flush=True
    )
    os._exit(1)
