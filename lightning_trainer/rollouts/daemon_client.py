"""A runner's requests to the daemon, over HTTP; they wait for a daemon that is restarting."""

import http.client
import json
import logging
import os
import re
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import lightning_instrumentation as lt
from lightning_instrumentation.access.proof import Access, authorization
from lightning_instrumentation.access.tls import ca_file_of_environment
from lightning_instrumentation.errors import UnprovenDaemonError
from lightning_instrumentation.runtime import running
from lightning_instrumentation.settings import checked_endpoint

from lightning_trainer.errors import LightningError, NotThereError, TrainingError

_log = logging.getLogger(__name__)


class RefusedError(LightningError):
    """The daemon, or another program that answers in its place, refuses a request.

    ``details`` is the answer's description of the error, with its ``message``; empty if the answer is not in the
    daemon's format.
    """

    def __init__(self, sentence: str, details: Mapping[str, Any]) -> None:
        super().__init__(sentence)
        self.details = details


class Reached(NamedTuple):
    """The address of a daemon, and what it takes to reach it."""

    endpoint: str
    token: str | None
    """None: the client has to find it."""
    ca_file: Path | None


def daemon_of_client(endpoint: str | None) -> Reached:
    """Start this program's client if necessary, and return how to reach its daemon: a runner asks the daemon that
    records its attempts, whichever one ``lt.init`` was given.

    Args:
        endpoint: another daemon, which is then reached with the environment's settings.

    Raises:
        ConfigurationError: the endpoint is not an http(s) URL.
    """
    lt.init(endpoint)
    started = running()
    of_client = None if started is None else started.settings
    wanted = checked_endpoint(endpoint or (of_client.endpoint if of_client else os.environ.get("LIGHTNING_ENDPOINT")))
    if of_client is not None and of_client.endpoint == wanted:
        return Reached(wanted, of_client.token, of_client.ca_file)
    return Reached(wanted, os.environ.get("LIGHTNING_TOKEN") or None, ca_file_of_environment())


_VERSION = re.compile(r"@v\d{1,18}$", re.ASCII)


def policy_of(model: str) -> str:
    """Return the policy of a model that the gateway serves: of ``POLICY``, or of one of its versions, ``POLICY@vN``."""
    return _VERSION.sub("", model)


# What an error response means: the daemon's own sentence, a wrong token, or another service.


def refusal(url: str, status: int, body: bytes) -> str:
    """Return one sentence about a response that is not a success."""
    sentence = _sentence(body)
    if status in (401, 403) and sentence is not None:
        return f"the daemon refuses the token: set LIGHTNING_TOKEN to [daemon] token of its configuration ({url})"
    if sentence is None:
        return not_a_daemon(url, f"it answered {status}")
    return f"the daemon answered {status}: {sentence} ({url})"


def not_a_daemon(url: str, why: str) -> str:
    """Return one sentence about a response that our daemon never gives."""
    return f"what answers at {url} is not a lightning-trainer daemon ({why}): check --endpoint or LIGHTNING_ENDPOINT"


def _sentence(body: bytes) -> str | None:
    """Return the daemon's own sentence; None if the body is not in its format."""
    return _details(body).get("message")


def _details(body: bytes) -> Mapping[str, Any]:
    """Return the daemon's description of an error; empty if the body is not in its format."""
    try:
        details = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return details if isinstance(details, dict) and isinstance(details.get("message"), str) else {}


_POLL_S = 5.0
"""Seconds after which a caller looks at what else may have happened to its groups."""
_AGAIN_S = 0.5
_LONGEST_ERROR = 65536
_CUT_OFF = (http.client.RemoteDisconnected, http.client.IncompleteRead)
"""The errors of a request that was under way when the daemon was stopped or killed."""
COME_AGAIN = (502, 503, 504)
"""Statuses of a daemon whose store cannot be read right now, and of a proxy whose daemon is restarting."""
_PAGE = 1000
"""Number of groups in one response; a shorter one is the last."""


class DaemonClient:
    """A client of the daemon's API for one policy.

    Args:
        policy: the policy's name; None for a client that only waits for the daemon.
        ca_file: certificates of the authorities that sign an https endpoint's; by default the environment's.
        patience_s: how long to wait for an unreachable daemon before raising an error.
    """

    def __init__(
        self,
        endpoint: str,
        policy: str | None,
        *,
        token: str | None = None,
        ca_file: Path | None = None,
        patience_s: float = 300.0,
    ) -> None:
        self._health = f"{endpoint.rstrip('/')}/healthz"
        self._url = f"{endpoint.rstrip('/')}/lightning/policies/{urllib.parse.quote(policy or '')}"
        self._recorded = f"{endpoint.rstrip('/')}/lightning/groups"
        self._policy = policy
        parts = urllib.parse.urlsplit(endpoint)
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._access = Access(endpoint, token, ca_file=ca_file or ca_file_of_environment())
        self._patience_s = patience_s
        self._waiting_said = False
        self._taken: dict[tuple[str, str], tuple[int, dict[str, int]]] = {}
        self._lost: set[str] = set()

    def wait_until_there(self) -> None:
        """Wait for a daemon that is starting, and for its engines and trainers for as long as they take.

        Raises:
            LightningError: the daemon has not answered after ``patience_s``, or there is no such policy.
        """
        if not {"status", "version"} <= self._get(self._health, timeout_s=30.0).keys():
            raise LightningError(not_a_daemon(self._origin, "its answer to /healthz is not a daemon's"))
        said = False
        while self._policy is not None and self.policy()["phase"] == "starting":
            if not said:
                _log.warning("the daemon at %s is starting its engines and trainers; waiting for them", self._origin)
            said = True
            time.sleep(_AGAIN_S)

    def policy(self) -> dict[str, Any]:
        """Return the policy's status.

        Raises:
            LightningError: there is no such policy, or no daemon answered within ``patience_s``.
        """
        return self._get(self._url, timeout_s=30.0)

    def live_versions(self) -> dict[str, int | None]:
        """Return the policy's live version under its name; empty for a client without a policy."""
        if self._policy is None:
            return {}
        return {self._policy: self._get(f"{self._url}?limit=1", timeout_s=30.0)["live_version"]}

    def groups(self, prefix: str, *, mode: str = "train", taken_until: int | None = None) -> dict[str, int]:
        """Return the number of ended attempts of a mode for each group whose id has the prefix, by the group's id.

        With ``taken_until``, only attempts that were taken by a step up to that one count. These are cached, so only
        those that are new since the last request are fetched.
        """
        if taken_until is None:
            return self._groups(f"{self._url}/groups", {"prefix": prefix, "mode": mode})
        known_until, known = self._taken.get((prefix, mode), (0, {}))
        if taken_until < known_until:
            known_until, known = 0, {}
        among = {"prefix": prefix, "mode": mode, "taken_after": known_until, "taken_until": taken_until}
        new = self._groups(f"{self._url}/groups", among)
        for group, attempts in new.items():
            known[group] = known.get(group, 0) + attempts
        self._taken[prefix, mode] = taken_until, known
        return known

    def recorded(self, prefix: str) -> dict[str, int]:
        """Return the number of ended attempts made for a dataset for each group whose id has the prefix, by its id."""
        return self._groups(self._recorded, {"prefix": prefix, "mode": "record"})

    def lost(self, prefix: str) -> set[str]:
        """Return the ids with the prefix of whole groups that no step will take: they were dropped or deleted."""
        found = set(self._groups(f"{self._url}/lost_groups", {"prefix": prefix}))
        self._lost |= found
        return found

    def used_up(self, prefix: str, *, taken_until: int) -> int:
        """Return how many groups with the prefix no later step will take, because they are taken or known as lost."""
        lost = {group for group in self._lost if group.startswith(prefix)}
        return len(self.groups(prefix, taken_until=taken_until).keys() | lost)

    def _groups(self, url: str, query: dict[str, str | int]) -> dict[str, int]:
        found: dict[str, int] = {}
        while True:
            page = self._get(f"{url}?{urllib.parse.urlencode(query)}", timeout_s=30.0)
            found |= page
            if len(page) < _PAGE:
                return found
            query["after"] = max(page)

    def wait_for_step(self, steps_done: int, *, groups_wanted: int) -> dict[str, Any]:
        """Return the policy's status once that many steps are done, once the current step wants more than
        ``groups_wanted`` groups, or after some seconds in any case.

        Raises:
            TrainingError: training is paused or finished before then; the message has the daemon's reason.
        """
        url = f"{self._url}?steps_done={steps_done}&groups_wanted={groups_wanted}&timeout_s={_POLL_S}"
        status = self._get(url, timeout_s=_POLL_S + 30.0)
        over = status["steps_done"] >= steps_done or status["groups_wanted"] > groups_wanted
        if not over and status["phase"] in ("paused", "finished", "serving"):
            raise TrainingError(f"step {steps_done} will not come: training is {status['phase']}: {status['detail']}")
        return status

    def _once(self, url: str, timeout_s: float, body: bytes | None) -> tuple[int, bytes]:
        """Send a request to a daemon that has proven itself, so that no other process on the port gets the token."""
        connection, token = self._access.open(timeout_s)
        try:
            headers = {"accept": "application/json", "connection": "close", **authorization(token)}
            if body is not None:
                headers["content-type"] = "application/json"
            connection.request(
                "GET" if body is None else "POST", url.removeprefix(self._origin), body=body, headers=headers
            )
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _get(self, url: str, *, timeout_s: float) -> dict[str, Any]:
        return self._asked(url, None, timeout_s=timeout_s)

    def _asked(self, url: str, document: Any, *, timeout_s: float) -> dict[str, Any]:
        """Return the answer to a GET, or to a POST of a document; a request that was cut off, or that no daemon was
        there to answer, is repeated for ``patience_s``."""
        given = None if document is None else json.dumps(document).encode()
        give_up = time.monotonic() + self._patience_s
        while True:
            try:
                status, body = self._once(url, timeout_s, given)
                if status in COME_AGAIN:
                    raise ConnectionError(refusal(url, status, body[:_LONGEST_ERROR]))
                if not 200 <= status < 300:
                    shown = body[:_LONGEST_ERROR]
                    # A proxy's own 404 says nothing about what the daemon has.
                    if status == 404 and _sentence(shown):
                        raise NotThereError(refusal(url, status, shown))
                    raise RefusedError(refusal(url, status, shown), _details(shown))
                answer = json.loads(body)
                if not isinstance(answer, dict):
                    raise ValueError(answer)
                self._waiting_said = False
                return answer
            except UnprovenDaemonError as error:
                if not error.passing or time.monotonic() > give_up:
                    raise LightningError(str(error)) from error
                self._say_that_it_waits(error)
                time.sleep(_AGAIN_S)
            except ValueError as error:
                raise LightningError(not_a_daemon(url, "its answer is not a JSON object")) from error
            except (OSError, http.client.HTTPException) as error:
                if isinstance(error, http.client.HTTPException) and not isinstance(error, _CUT_OFF):
                    raise LightningError(not_a_daemon(url, "it does not speak HTTP")) from error
                if time.monotonic() > give_up:
                    raise LightningError(
                        f"the daemon at {url} has not answered for {self._patience_s:.0f} s ({error}); "
                        "start it with: lightning-trainer serve --config lightning.toml"
                    ) from error
                self._say_that_it_waits(error)
                time.sleep(_AGAIN_S)

    def _say_that_it_waits(self, error: Exception) -> None:
        """Log once that this client is waiting, because a waiting runner looks like one that hangs."""
        if not self._waiting_said:
            self._waiting_said = True
            _log.warning(
                "the daemon at %s does not answer (%s); waiting for it, for %.0f s at most",
                self._origin,
                error,
                self._patience_s,
            )
