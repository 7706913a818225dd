"""Versions of prompts that the daemon serves, as this process knows them: ``POST {endpoint}/lightning/prompts/{name}``.

A version that is known is returned at once, and asked for again in a thread. A program waits only for a version that is
not known yet, or was last asked for so long ago that another may well be served by now. A daemon that hangs or is gone
costs a program one second in total, until it answers again.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

from lightning_instrumentation.access.proof import Access, authorization
from lightning_instrumentation.failures import failures
from lightning_instrumentation.prompts.version import PromptVersion, read_version

PATH: Final = "/lightning/prompts"
_FIRST_S = 1.0
"""How long a process waits, over all prompts, for a daemon that does not answer."""
_TIMEOUT_S = 5.0
_EVERY_S = 5.0
_AFTER_FAILURE_S = 30.0
_OLD_S = 5.0
"""A version that should have been asked for again this long ago is waited for: a program may use its prompt once an
hour. Together with ``_EVERY_S``, this gives the ten seconds within which a program gets the version that is chosen."""
_MOST = 256
"""Maximum number of defaults in one process."""
_MOST_OF_NAME = 32
"""Maximum number of defaults with one name: if there are more, the text is put together for each call."""
_LONGEST_ANSWER = 1 << 20


@dataclass(slots=True)
class _Known:
    """What is known about a default."""

    version: PromptVersion | None = None
    ask_at: float = 0.0
    """When the daemon is asked again, by the monotonic clock; infinite while it is being asked."""
    asked: threading.Event = field(default_factory=threading.Event)
    """Set once the daemon has answered, or has failed to."""
    old: bool = False
    """Whether callers wait for the answer although a version is known."""


class LivePrompts:
    """The versions that one process knows; thread-safe."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], _Known] = {}
        self._lock = threading.Lock()
        self._left_s = _FIRST_S
        """How much longer the process waits for a daemon that does not answer; reset once one has answered."""

    def version(self, access: Access, name: str, default: str, *, may_be_sent: bool) -> PromptVersion | None:
        """Return the version that the daemon serves in place of a default; None if it is not known.

        Args:
            may_be_sent: whether the default may leave the process; if not, only its digest does, and the daemon has
                versions of it only if another process has made the default known.
        """
        key = (access.endpoint, name, default)
        with self._lock:
            known = self._known.get(key)
            if known is None:
                if len(self._known) >= _MOST or sum(one == name for _, one, _ in self._known) >= _MOST_OF_NAME:
                    failures.say(
                        f"prompts-too-many-{name}",
                        f"lt.prompt({name!r}) is given one text after another, and further ones are used as they are: "
                        "give it a fixed text, no f-string, and put in what changes afterwards",
                    )
                    return None
                known = self._known[key] = _Known()
            now = time.monotonic()
            ask = now >= known.ask_at
            if ask:
                if known.version is not None and now - known.ask_at > _OLD_S:
                    known.old, known.asked = True, threading.Event()
                known.ask_at = float("inf")
        if ask:
            given = default if may_be_sent else None
            asking = (access, name, hashlib.sha256(default.encode("utf-8", "surrogatepass")).hexdigest(), given, known)
            try:
                threading.Thread(target=self._ask, args=asking, name="lightning-prompts", daemon=True).start()
            except RuntimeError:  # no more threads can be started, or the interpreter ends
                known.old, known.ask_at = False, now + _AFTER_FAILURE_S
                known.asked.set()
        if (known.version is None or known.old) and not known.asked.wait(max(0.0, self._left_s)):
            with self._lock:
                self._left_s -= time.monotonic() - now
        return known.version

    def _ask(self, access: Access, name: str, root: str, default: str | None, known: _Known) -> None:
        if _ask(access, name, root, default, known):
            self._left_s = _FIRST_S

    def in_child(self) -> None:
        """Forget, after a fork, the thread that was asking: it does not exist in the child."""
        self._lock = threading.Lock()
        self._left_s = _FIRST_S
        now = time.monotonic()
        for key, known in list(self._known.items()):
            # The child asks at its next use, and waits only if its parent would have waited.
            self._known[key] = _Known(known.version, min(known.ask_at, now), threading.Event(), known.old)


def _ask(access: Access, name: str, root: str, default: str | None, known: _Known) -> bool:
    """Ask for the live version and note it; return whether something answered. A failure is reported once, and keeps
    the version that was known."""
    import http.client  # only programs that use prompts need it

    again_s, answered = _AFTER_FAILURE_S, False
    try:
        status, answer = _post(access, f"{PATH}/{quote(name, safe='')}", {"root": root, "default": default})
        answered = True
        if status == 200:
            known.version = read_version(answer)
            again_s = _EVERY_S
        elif not (status == 404 and default is None and "error" in answer):  # no process has made this default known
            failures.note("prompt-refused", f"the daemon serves no version of {name!r}: {_said(answer, status)}")
    except (OSError, http.client.HTTPException):  # the sender reports that the daemon cannot be reached
        failures.count("prompt-unanswered")
    except Exception as error:
        failures.note("prompt", f"what answers for {name!r} is not a version of a prompt", error=error)
    known.old, known.ask_at = False, time.monotonic() + again_s
    known.asked.set()
    return answered


def _post(access: Access, path: str, document: Any) -> tuple[int, Any]:
    connection, token = access.open(_TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json", "User-Agent": "lightning-trainer", "Connection": "close"}
        headers |= authorization(token)
        url = urlsplit(access.endpoint).path.rstrip("/") + path
        connection.request("POST", url, body=json.dumps(document).encode(), headers=headers)
        response = connection.getresponse()
        body = response.read(_LONGEST_ANSWER + 1)
    finally:
        connection.close()
    if len(body) > _LONGEST_ANSWER:
        raise ValueError(f"it answered more than {_LONGEST_ANSWER} bytes")
    return response.status, json.loads(body)


def _said(answer: Any, status: int) -> str:
    try:
        return str(answer["error"]["message"])
    except (KeyError, TypeError):
        return f"it answered {status}, as one that is older and knows no prompts; upgrade it"


live = LivePrompts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=live.in_child)
