"""Web pages of your own in a headless Chromium: ``web:path/to/file.py``.

A class in the file says where an attempt starts and what it earned::

    class Shop:
        def open(self, task):
            return "Order a lamp.", "http://127.0.0.1:8000/"  # the goal, and an address or the page itself (HTML)

        def reward(self, run):
            return run("return window.ordered ? 1 : null")  # JavaScript; None: the attempt continues

The model reads the accessibility tree, as a screen reader would. Every element that takes a click or text is followed
by a number to act on: ``button "Buy" [3]``. Clicks and text go through the browser's own input, as a person's do.
Sources: Chrome DevTools Protocol (Accessibility, DOM, Input); WAI-ARIA 1.2, roles.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from selenium.common.exceptions import JavascriptException, WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from urllib3.exceptions import HTTPError

from lightning_trainer.environments.adapters.browser import (
    BrowserEnvironment,
    NotPossibleError,
    end,
    no_element,
    no_entry,
    programs,
)
from lightning_trainer.environments.loading import module_of
from lightning_trainer.environments.protocol import Task

_SWITCHES = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
)
_FIELDS = ("textbox", "searchbox", "spinbutton")
_LISTS = ("combobox", "listbox")
_ACTED_ON = (*_FIELDS, *_LISTS, "button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "slider")
_STATES = ("checked", "selected", "pressed", "expanded", "disabled")
_SETTLED_S = 3.0
"""A page that is still loading after this long is shown as it is."""
_MOST_LINES = 200

_EMPTY = "function() { if (this.select) this.select(); else document.execCommand('selectAll'); }"
_CHOOSE = """function(text) {
    const found = Array.from(this.options || []).find(option => option.text.trim() === text.trim());
    if (!found) return false;
    this.value = found.value;
    this.dispatchEvent(new Event('input', {bubbles: true}));
    this.dispatchEvent(new Event('change', {bubbles: true}));
    return true;
}"""
_ENTRIES = "function() { return Array.from(this.options || []).map(option => option.text.trim()); }"


class Pages(Protocol):
    """The methods of a user's class, which is created once."""

    def open(self, task: Task) -> tuple[str, str]:
        """Return the agent's goal, and the address of the first page or its HTML."""
        ...

    def reward(self, run: Callable[[str], Any]) -> float | None:
        """Return the attempt's reward, or None while the attempt continues; ``run`` runs JavaScript in the page."""
        ...


class WebPages(BrowserEnvironment):
    """An environment of the user's web pages in a browser.

    Args:
        file: a file that contains a class with the methods of ``Pages``.
        pages: the name of the class, if the file has several.
        max_turns: after this many turns the attempt is lost.
        tools: offer ``click`` and ``type`` as tools instead of text actions.
        screenshots: every observation has a picture of the page.
        hosts: names that the browser may resolve, separated by commas, or ``*`` for all; limited because a policy in
            training clicks anything.
        width, height: the window's size in pixels.
        chromium, chromedriver: paths of the browser and its driver; by default those on the PATH.

    Raises:
        ValueError: there is no such class, no browser, or no driver.
    """

    def __init__(
        self,
        file: str,
        *,
        pages: str | None = None,
        max_turns: int = 8,
        tools: bool = False,
        screenshots: bool = False,
        hosts: str = "127.0.0.1,localhost",
        width: int = 800,
        height: int = 600,
        chromium: str | None = None,
        chromedriver: str | None = None,
    ) -> None:
        super().__init__(max_turns=max_turns, tools=tools, screenshots=screenshots)
        self._pages, self.version = _loaded(Path(file), pages)
        binary, driver = programs("web:FILE", chromium, chromedriver)
        options = ChromeOptions()
        options.binary_location = binary
        options.unhandled_prompt_behavior = "accept"  # alert() and confirm() would wait for an answer
        self._profile = tempfile.TemporaryDirectory(prefix="lightning-browser-")
        switches = [*_SWITCHES, f"--window-size={width},{height}", f"--user-data-dir={self._profile.name}"]
        self._hosts = hosts
        if hosts != "*":
            rules = ["MAP * ~NOTFOUND", *(f"EXCLUDE {host.strip()}" for host in hosts.split(","))]
            switches.append(f"--host-resolver-rules={', '.join(rules)}")
        if os.geteuid() == 0:
            switches.append("--no-sandbox")  # as root, Chromium refuses to start with its sandbox
        for switch in switches:
            options.add_argument(switch)
        try:
            self._driver = Chrome(options=options, service=Service(driver))
        except (WebDriverException, HTTPError) as error:
            end(error)
        self._command("Browser.setDownloadBehavior", behavior="deny")
        self._goal = ""
        self._elements: list[dict[str, Any]] = []
        """Elements that can be acted on; an element's number is its position, counted from 1."""

    def _open(self, task: Task) -> str:
        opened: object = self._pages.open(task)
        if not (isinstance(opened, tuple) and len(opened) == 2 and all(isinstance(part, str) for part in opened)):
            raise ValueError(
                f"open() returned {str(opened)[:100]!r}; it must be two texts: a goal, and an address or HTML"
            )
        self._goal, start = opened
        # Every attempt starts in one window, without cookies or other data of the attempt before.
        self._to_newest_window()
        self._command("Network.clearBrowserCookies")
        self._command("Storage.clearDataForOrigin", origin="*", storageTypes="all")
        if start.lstrip().startswith("<"):
            start = f"data:text/html;charset=utf-8;base64,{base64.b64encode(start.encode()).decode()}"
        try:
            self._driver.get(start)
            failed = self._driver.execute_script("return location.protocol") == "chrome-error:"
        except WebDriverException as error:
            if "net::ERR" not in str(error):
                raise
            failed = True
        if failed:
            raise ValueError(
                f"{start[:100]} cannot be opened: nothing answers there, or its host is not among ?hosts={self._hosts}"
            )
        return self._page()

    def _click(self, ref: int) -> float | None:
        element = self._element(ref)
        corners = self._corners(element)
        if corners is None:
            raise NotPossibleError(f"The element {ref} is not where a click could reach it.")
        x, y = sum(corners[::2]) / 4, sum(corners[1::2]) / 4
        for kind in ("mousePressed", "mouseReleased"):
            self._command("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        return self._earned()

    def _type(self, ref: int, text: str) -> float | None:
        element = self._element(ref)
        role = _value(element, "role")
        if role in _LISTS:
            if not self._call(element, _CHOOSE, text):
                raise no_entry(ref, text)
            return self._earned()
        if role not in _FIELDS:
            raise NotPossibleError(f"The element {ref} takes no text.")
        self._command("DOM.focus", backendNodeId=element["backendDOMNodeId"])
        self._call(element, _EMPTY)
        self._command("Input.insertText", text=text)
        return self._earned()

    def _earned(self) -> float | None:
        self._settle()
        earned: object = self._pages.reward(self._run)
        if earned is None:
            return None
        if isinstance(earned, bool) or not isinstance(earned, int | float):
            raise ValueError(f"reward() returned {earned!r}; it must be a number, or None while the attempt goes on")
        return float(earned)

    def _run(self, script: str) -> Any:
        try:
            return self._driver.execute_script(script)
        except JavascriptException as error:
            raise ValueError(f"{script[:100]!r} fails in the page: {str(error).splitlines()[0]}") from None

    def _to_newest_window(self) -> None:
        """Continue in the window that a link has opened, and close the others."""
        while opened := [one for one in self._driver.window_handles if one != self._driver.current_window_handle]:
            self._driver.close()
            self._driver.switch_to.window(opened[-1])

    def _settle(self) -> None:
        """Wait for what a click started: a navigation, or the page's next frame."""
        self._to_newest_window()
        give_up = time.monotonic() + _SETTLED_S
        time.sleep(0.02)
        while time.monotonic() < give_up and self._driver.execute_script("return document.readyState") != "complete":
            time.sleep(0.02)

    def _page(self) -> str:
        self._elements = []
        nodes = self._command("Accessibility.getFullAXTree")["nodes"]
        lines = list(self._lines(nodes[0], {node["nodeId"]: node for node in nodes})) if nodes else []
        left_out = [f"... and {len(lines) - _MOST_LINES} lines more"] if len(lines) > _MOST_LINES else []
        return "\n".join([self._goal, "", *lines[:_MOST_LINES], *left_out])

    def _lines(self, node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
        role, name = _value(node, "role"), " ".join(_value(node, "name").split())
        if not node.get("ignored") and role in _ACTED_ON and "backendDOMNodeId" in node:
            self._elements.append(dict(node))
            yield self._line(node, role, name)
            return
        if not node.get("ignored") and role in ("StaticText", "image") and name:
            yield name if role == "StaticText" else f"image {json.dumps(name, ensure_ascii=False)}"
            return
        for child in node.get("childIds", ()):
            if child in nodes:
                yield from self._lines(nodes[child], nodes)

    def _line(self, node: Mapping[str, Any], role: str, name: str) -> str:
        words = [role, json.dumps(name, ensure_ascii=False)]
        if role in (*_FIELDS, *_LISTS) and (typed := _value(node, "value")):
            words.append(json.dumps(typed, ensure_ascii=False))
        states = {one["name"]: one["value"].get("value") for one in node.get("properties", ())}
        words += [state for state in _STATES if states.get(state) in (True, "true")]
        words.append(f"[{len(self._elements)}]")
        if role in _LISTS and (entries := self._call(node, _ENTRIES)):
            words.append(f"of: {', '.join(entries)}")
        return " ".join(words)

    def _element(self, ref: int) -> Mapping[str, Any]:
        if not 1 <= ref <= len(self._elements):
            raise no_element(ref)
        return self._elements[ref - 1]

    def _corners(self, element: Mapping[str, Any]) -> list[float] | None:
        """Return an element's four corners on the screen, as alternating x and y; None if it has none."""
        number = element["backendDOMNodeId"]
        try:
            self._command("DOM.scrollIntoViewIfNeeded", backendNodeId=number)
            return self._command("DOM.getContentQuads", backendNodeId=number)["quads"][0]
        except (WebDriverException, IndexError):
            return None

    def _call(self, element: Mapping[str, Any], function: str, *arguments: object) -> Any:
        """Call a JavaScript function with an element as its ``this``, and return its result."""
        found = self._command("DOM.resolveNode", backendNodeId=element["backendDOMNodeId"])["object"]
        return self._command(
            "Runtime.callFunctionOn",
            objectId=found["objectId"],
            functionDeclaration=function,
            arguments=[{"value": one} for one in arguments],
            returnByValue=True,
        )["result"].get("value")

    def _screenshot(self) -> str:
        return self._driver.get_screenshot_as_base64()

    def _close(self) -> None:
        self._driver.quit()

    def _command(self, name: str, **parameters: object) -> Any:
        return self._driver.execute_cdp_cmd(name, parameters)


def _value(node: Mapping[str, Any], name: str) -> str:
    value = node.get(name, {}).get("value")
    return str(value) if value is not None else ""


def _loaded(file: Path, name: str | None) -> tuple[Pages, str]:
    """Return the user's object, and the version of its rules: a digest of its file."""
    if not file.is_file():
        raise ValueError(f"there is no file {str(file)!r}; write web:path/to/file.py")
    found = [
        one
        for one in vars(module_of(file)).values()
        if isinstance(one, type)
        and one.__module__ == file.stem
        and all(callable(getattr(one, method, None)) for method in ("open", "reward"))
        and name in (None, one.__name__)
    ]
    if len(found) != 1:
        names = " and ".join(one.__name__ for one in found) or "none"
        wanted = "one class with open and reward" if name is None else f"a class {name} with open and reward"
        raise ValueError(f"{file.name} must have {wanted}, and it has {names}; name one as web:FILE?pages=NAME")
    return found[0](), f"1-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"
