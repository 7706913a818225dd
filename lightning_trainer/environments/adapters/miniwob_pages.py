"""MiniWoB++'s small web pages in a headless Chromium: ``miniwob:click-button``, ``miniwob:login-user``.

The page is described by its visible elements, one per line, each with a number to act on, as in Playwright's snapshots:
``button "Send" [6]``. The pages come with the package.
Source: Liu et al. 2018, arXiv 1802.08802; https://github.com/Farama-Foundation/miniwob-plusplus (MIT).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

import miniwob
from miniwob.action import ActionTypes
from miniwob.environment import MiniWoBEnvironment
from miniwob.reward import get_raw_reward
from selenium.common.exceptions import WebDriverException
from urllib3.exceptions import HTTPError

from lightning_trainer.environments.adapters.browser import BrowserEnvironment, end, no_element, no_entry, programs
from lightning_trainer.environments.protocol import Task

_PAGES = Path(miniwob.__file__).parent / "html" / "miniwob"
_FIELDS = ("input", "textarea")
_CANDIDATES = 64
"""How many variants of a page are tried to find one of the task's split."""

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


class MiniWoB(BrowserEnvironment):
    """One of MiniWoB++'s pages as text.

    Args:
        page: the name of a MiniWoB++ page, such as ``click-button``; only pages that clicking and typing can solve.
        max_turns: after this many turns the attempt is lost.
        tools: offer ``click`` and ``type`` as tools instead of text actions.
        screenshots: every observation has a picture of the page.
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
        screenshots: bool = False,
        wait_ms: float = 0.0,
        chromium: str | None = None,
        chromedriver: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, tools=tools, screenshots=screenshots)
        if not re.fullmatch(r"[a-z0-9-]+", page) or not (_PAGES / f"{page}.html").exists():
            raise ValueError(f"MiniWoB++ has no page {page!r}; its pages are at https://miniwob.farama.org")
        binary, driver = programs("miniwob:PAGE", chromium, chromedriver)
        os.environ["MINIWOB_CHROME_BINARY"], os.environ["MINIWOB_CHROMEDRIVER"] = binary, driver
        try:
            self._world = MiniWoBEnvironment(page, reward_processor=get_raw_reward, wait_ms=wait_ms)
        except (WebDriverException, HTTPError) as error:
            end(error)
        self._kinds = self._world.action_space_config.action_types

    def _open(self, task: Task) -> str:
        return task.of_split(self._versions(task), patience=_CANDIDATES)

    def _versions(self, task: Task) -> Iterator[str]:
        for number in range(10 * _CANDIDATES):
            self._script(_NO_CLOCK)
            seed = task.random(number).randrange(2**31)
            self._seen, _ = self._world.reset(seed=seed, options={"record_screenshots": False})
            yield self._page()

    def _click(self, ref: int) -> float | None:
        return self._reward_of(ref, ActionTypes.CLICK_ELEMENT)

    def _type(self, ref: int, text: str) -> float | None:
        if self._element(ref).startswith("select"):
            if not self._script(_CHOOSE, ref, text):
                raise no_entry(ref, text)
            return self._reward_of(ref, ActionTypes.NONE)
        if self._element(ref).startswith(_FIELDS):
            self._script(_EMPTY, ref)
        return self._reward_of(ref, ActionTypes.FOCUS_ELEMENT_AND_TYPE_TEXT, text)

    def _reward_of(self, ref: int, kind: ActionTypes, text: str = "") -> float | None:
        if not self._element(ref):
            raise no_element(ref)
        action = {"action_type": self._kinds.index(kind), "ref": ref, "text": text}
        self._seen, reward, done, _, _ = self._world.step(action)
        # The page gives negative rewards for mistakes; here a wrong ending is worth 0, the same as no ending.
        return max(0.0, float(reward)) if done else None

    def _element(self, ref: int) -> str:
        """Return the kind of the element shown under this number; empty if there is none."""
        return next((one["tag"].lower() for one in self._seen["dom_elements"] if one["ref"] == ref and ref > 0), "")

    def _page(self) -> str:
        elements = self._seen["dom_elements"]
        lists = self._script(_LISTS) if any(one["tag"].lower() == "select" for one in elements) else {}
        return "\n".join([self._seen["utterance"], "", *_lines(elements, lists)])

    def _screenshot(self) -> str:
        return self._world.instance.driver.get_screenshot_as_base64()

    def _close(self) -> None:
        self._world.close()

    def _script(self, script: str, *arguments: Any) -> Any:
        return self._world.instance.driver.execute_script(script, *arguments)


def _lines(elements: tuple[dict[str, Any], ...], lists: Mapping[str, Any]) -> list[str]:
    """Return the visible part of a page: leaves and lists, without boxes that only contain others."""
    lines: list[tuple[list[str], list[str]]] = []
    """Each element's words, and what follows them: the number comes after the words, because an answer, too, ends with
    the click."""
    for element in elements:
        tag, text = element["tag"].lower(), " ".join(element["text"].split())
        if tag == "t":
            if lines and lines[-1][0][0] in ("input_checkbox", "input_radio"):
                lines[-1][0].append(text)  # the text right after a box is its label
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
