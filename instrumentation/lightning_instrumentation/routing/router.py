"""Routing: calls of agents that a policy claims go to the daemon's gateway, no others.

The daemon's selection is fetched by short-lived threads, never by the call that asks. Only the first query of a process
may wait, so that a script's first call is routed too: ``FIRST_WAIT_S`` from the beginning of the first fetch, or
``PROOF_S`` if something has accepted a connection by then. Later calls use the cached selection and at most start the
next fetch.
"""

from __future__ import annotations

import math
import threading

from lightning_instrumentation.access.patience import current_patience, monotonic
from lightning_instrumentation.access.proof import PROOF_S, Access
from lightning_instrumentation.access.tls import TlsError
from lightning_instrumentation.errors import OtherDaemonError, UnprovenDaemonError
from lightning_instrumentation.failures import log
from lightning_instrumentation.routing.selection import Selection, SelectionError, fetch_selection

REFRESH_S = 5.0
"""A selection older than this is refetched in the background by the next call."""
FIRST_WAIT_S = 0.25
"""How long the first query waits for a daemon that may not exist."""
_TRUST_S = 30.0
"""How long a selection remains valid while the daemon is up but too busy (or broken) to repeat it."""
_MOST_REMEMBERED = 4096
_MOST_ANSWERS = 4096


class GatewayUnprovenError(BaseException):
    """A claimed call must not be sent anywhere. Not an ``Exception``, so that the guards that protect the agent from us
    do not swallow it; the caller gets their library's own error (``routing.edge``)."""


class Router:
    """Caches the selection of one daemon; thread-safe.

    Args:
        access: the access to the daemon.
        enabled: False routes nothing and contacts no daemon.
        fallback: whether a claimed call may go to the user's own URL while the daemon is down. If not, the last known
            selection stays in force, and claimed calls fail rather than go elsewhere.
    """

    def __init__(self, access: Access, *, enabled: bool = True, fallback: bool = True) -> None:
        self.endpoint = access.endpoint
        self.access = access
        self.enabled = enabled
        self.fallback = fallback
        self._selection = Selection()
        self._policies: dict[str, str | None] = {}
        self._fetching = threading.Lock()
        self._answered = threading.Event()
        self._first_asked: float | None = None
        self._fetch_at = 0.0
        self._confirmed_at = 0.0
        self._untold: tuple[str, str, Exception] | None = None
        self._said: set[str] = set()
        self._answers: dict[str, None] = {}
        """Ids of the newest responses that the gateway gave; ``_older_answers`` has those before. With two mappings,
        no lock is needed."""
        self._older_answers: dict[str, None] = {}

    def routes_nothing(self) -> bool:
        """Whether no call can be routed, whichever agent makes it: checked first, because most programs are only
        observed.

        False also if the next query has work to do: wait for the first selection, fetch, or report.
        """
        return not self.enabled or (
            not self._selection.policies
            and self._untold is None
            and monotonic() < self._fetch_at
            and self._answered.is_set()
        )

    def policy_of(self, agent: str | None, limit_s: float = math.inf) -> str | None:
        """Return the policy that claims the agent, according to the cached selection.

        Args:
            limit_s: how long to wait at most, if this is the first query.
        """
        if agent is None or not self.enabled:
            return None
        self.keep_fresh()
        if not self._answered.is_set():
            self._wait_for_first(current_patience().at_most(limit_s))
        if self._untold is not None:
            self._tell()
        remembered = self._policies
        if agent not in remembered:
            if len(remembered) >= _MOST_REMEMBERED:
                remembered.clear()
            remembered[agent] = self._selection.policy_of(agent)
        return remembered.get(agent)

    def _wait_for_first(self, limit_s: float) -> None:
        asked, until = self._first_asked, monotonic() + limit_s
        if asked is None:
            return
        self._answered.wait(max(0.0, min(until, asked + FIRST_WAIT_S) - monotonic()))
        if self.access.accepted and not self._answered.is_set():
            self._answered.wait(max(0.0, min(until, asked + PROOF_S) - monotonic()))

    def has_answer(self) -> bool:
        """Whether the first fetch has ended, so that ``policy_of`` does not wait."""
        return self._answered.is_set()

    def is_late(self) -> bool:
        """Whether a query has been made that the daemon has not answered yet, so that a policy may claim any call."""
        return self._first_asked is not None and not self._answered.is_set()

    @property
    def paths(self) -> frozenset[str]:
        """Return the paths that the gateway serves."""
        return self._selection.paths

    def answered(self, response_id: str) -> None:
        """Remember that the gateway gave a response; only the newest thousands are remembered."""
        if len(self._answers) >= _MOST_ANSWERS:
            self._older_answers, self._answers = self._answers, {}
        self._answers[response_id] = None

    def has_answered(self, response_id: object) -> bool:
        """Whether the gateway gave this response to this process, so that no other host knows it."""
        return isinstance(response_id, str) and (response_id in self._answers or response_id in self._older_answers)

    def keep_fresh(self) -> None:
        """Start a fetch if one is due and none is in progress."""
        now = monotonic()
        if not self.enabled or now < self._fetch_at:
            return
        if self._first_asked is None:  # before ``_fetch_at``: a thread that sees a fetch waits from this time on
            self._first_asked = now
        if not self._fetching.acquire(blocking=False):
            return
        try:
            self._fetch_at = now + REFRESH_S
            threading.Thread(target=self._fetch, name="lightning-selection", daemon=True).start()
        except RuntimeError:  # the interpreter is shutting down, or there are too many threads
            self._fetching.release()

    def daemon_is_away(self) -> None:
        """Record that a routed call met a closed port: later calls are not routed until the daemon answers again."""
        if self.fallback:
            self._select(Selection())
        self._fetch_at = 0.0
        self.access.forget()

    def proven(self) -> bool:
        """Whether a call may go to the gateway, because what answers there has just proven that it is the daemon.

        Raises:
            GatewayUnprovenError: there is no such proof, and the call must not go elsewhere.
        """
        try:
            self.access.opened()
        except Exception as error:  # an HTTPException is not an OSError; importing its module costs time
            self._not_told(error)
            if not self.fallback:
                raise GatewayUnprovenError(str(error)) from error
            self._select(Selection())
            self._tell()
            return False
        return True

    def in_child(self) -> Router:
        """Keep the selection in a forked child, and replace locks that threads of the parent may hold."""
        child = Router(self.access.in_child(), enabled=self.enabled, fallback=self.fallback)
        child._select(self._selection)
        child._confirmed_at = self._confirmed_at
        child._said = set(self._said)
        child._answers, child._older_answers = dict(self._answers), self._older_answers
        if self._answered.is_set():
            child._answered.set()
        return child

    def _fetch(self) -> None:
        try:
            selection = fetch_selection(self.access)
        except Exception as error:
            self._not_told(error)
        else:
            self._confirmed_at = monotonic()
            self._untold = None
            if selection != self._selection:
                self._select(selection)
        finally:
            self._answered.set()
            self._fetching.release()

    def _not_told(self, error: Exception) -> None:
        gone = isinstance(error, (ConnectionRefusedError, UnprovenDaemonError))
        stale = monotonic() - self._confirmed_at > _TRUST_S
        if self.fallback and (gone or stale or isinstance(error, SelectionError)):
            self._select(Selection())
        if isinstance(error, TlsError):
            words = "tls", "nothing is sent to the daemon at %s, and calls go where they always went: %s"
        elif isinstance(error, OtherDaemonError):
            words = "other-daemon", "no call is sent to the daemon at %s, and all go where they always went: %s"
        elif isinstance(error, UnprovenDaemonError):
            words = "unproven", "calls go where they always went until the daemon at %s has proven itself: %s"
        elif isinstance(error, SelectionError) and error.status in (401, 403):
            words = "token", "the daemon at %s refuses our token and no call is routed: set LIGHTNING_TOKEN (%s)"
        elif isinstance(error, SelectionError) and error.status in (200, 404, 405, 501):
            sentence = "what answers at %s is not a lightning-trainer daemon: check LIGHTNING_ENDPOINT (%s)"
            words = "other", sentence
        elif isinstance(error, SelectionError):
            words = "answer", "the daemon at %s names no agents whose calls to route: %s"
        else:
            words = "away", "the daemon at %s is away: calls go where they always went until it answers (%s)"
        self._untold = (words[0], words[1], error)

    def _tell(self) -> None:
        """Report each reason once, and only in a process where an agent makes calls."""
        untold, self._untold = self._untold, None
        if untold is not None and untold[0] not in self._said:
            reason, sentence, error = untold
            self._said.add(reason)
            log.warning(sentence, self.endpoint, error)

    def _select(self, selection: Selection) -> None:
        # In this order: a thread that sees the new table also sees the new selection.
        self._selection = selection
        self._policies = {}
