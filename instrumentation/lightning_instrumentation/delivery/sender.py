"""The thread that delivers spools to the daemon, for as long as it takes.

Spans are forgotten only on 2xx. An unreachable or failing daemon is tried again after growing, jittered pauses; a body
that it finds too large or malformed is halved until the one span to blame is found, which is put aside and reported.
"""

from __future__ import annotations

import codecs
import contextlib
import http.client
import os
import random
import threading
import time
from collections.abc import Callable, Sequence

from lightning_instrumentation.access.patience import monotonic
from lightning_instrumentation.access.proof import SPEAK_TLS
from lightning_instrumentation.access.tls import TlsError
from lightning_instrumentation.delivery.memory import MemorySpool
from lightning_instrumentation.delivery.post import Answer, Poster
from lightning_instrumentation.delivery.spool import Spool
from lightning_instrumentation.errors import OtherDaemonError, UnprovenDaemonError
from lightning_instrumentation.failures import failures, log
from lightning_instrumentation.routing.hosts import on_this_machine

_MOST_ROWS = 512
_GATHER_S = 0.25
"""Spans come in bursts. Waiting this long turns a burst into one request, and a request costs as much as ten spans."""
_ADOPT_EVERY_S = 10.0
_IDLE_EVERY_S = 5.0
_PAUSE_S = (0.25, 30.0)
_CONNECT_AT_EXIT_S = 0.5
_LONGEST_RETRY_AFTER_S = 300.0
_TO_BLAME = frozenset({400, 413, 422})
"""Statuses that say something about the body and not about the daemon."""
_PROXIES = frozenset({"http_proxy", "https_proxy", "all_proxy"})


AnySpool = Spool | MemorySpool


class Sender:
    """Sends waiting spans from a thread of its own; if none can be started, a flush sends them.

    Args:
        sources: returns the spools to empty, in order.
        adopt: takes over orphans and returns them.
        when_idle: called every few seconds while no span waits; it may add a span.
    """

    def __init__(
        self,
        poster: Poster,
        endpoint: str,
        sources: Callable[[], Sequence[AnySpool]],
        adopt: Callable[[], Sequence[Spool]],
        when_idle: Callable[[], None] = lambda: None,
    ) -> None:
        self._poster = poster
        self._endpoint = endpoint
        self._sources = sources
        self._adopt = adopt
        self._when_idle = when_idle
        self.opening = threading.Lock()
        """Held while this thread opens or closes files, or imports: a fork in the middle would copy descriptors that no
        one closes, and the lock of a half-imported module that no one releases."""
        self.adopted: list[Spool] = []
        """Spools of dead processes that are being emptied."""
        self._wake = threading.Event()
        self._idle = True
        self._round_ended = threading.Condition()
        self._stopping = False
        self._hurry = 0
        self._rounds_failed = 0
        self._limit = _MOST_ROWS
        self._pause_s = 0.0
        self._not_before = 0.0
        self._asked_to_wait = False
        self._adopt_at = 0.0
        self._idle_at = 0.0
        self._down = False
        self._random = random.Random()  # never the global one: the user may have seeded it
        self._thread: threading.Thread | None = None
        self._without_thread = False
        self._sending_here = threading.Lock()
        self.delivered = 0
        self.rejected = 0

    @property
    def reachable(self) -> bool | None:
        """Whether the daemon took the last request; None before the first attempt."""
        return None if not self._poster.connected and not self._down else not self._down

    def start(self) -> None:
        """Start the thread that sends; if none can be started, ``flush`` sends by itself."""
        thread = threading.Thread(target=self._run, name="lightning-sender", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the interpreter is shutting down (Python 3.12), or there are too many threads
            self._without_thread = True
        else:
            self._thread = thread

    def wake(self) -> None:
        """Wake the thread for a new span, unless it is working or pausing on purpose: a wake-up costs a switch."""
        if self._idle:
            self._wake.set()

    def flush(self, timeout_s: float, *, patient: bool = True) -> bool:
        """Wait until the sources are empty; return whether they are.

        ``patient=False`` gives up at the first failed attempt, or if no connection is made quickly.
        """
        deadline = monotonic() + timeout_s
        # On this machine, a connection to an absent daemon is refused at once; on a remote one, nothing may answer.
        connect_by = monotonic() + (timeout_s if self._poster.is_local else _CONNECT_AT_EXIT_S)
        with self._round_ended:
            failed_before = self._rounds_failed
            self._hurry += 1
            if not self._asked_to_wait:
                self._not_before = 0.0
        self._wake.set()
        try:
            with self._round_ended:
                while not self._without_thread:
                    if not any(spool.rows for spool in self._sources()):
                        return True
                    now = monotonic()
                    gave_up = not patient and (
                        self._rounds_failed > failed_before or (now > connect_by and not self._poster.connected)
                    )
                    if now >= deadline or gave_up or self._stopping:
                        return False
                    self._round_ended.wait(min(deadline - now, 0.1))
            return self._send_here(deadline, patient=patient)
        finally:
            with self._round_ended:
                self._hurry -= 1

    def _send_here(self, deadline: float, *, patient: bool) -> bool:
        if not self._sending_here.acquire(timeout=max(0.0, deadline - monotonic())):
            return False
        try:
            with _suppressed():
                failed_before = self._rounds_failed
                while any(spool.rows for spool in self._sources()):
                    left_s = deadline - monotonic()
                    if left_s <= 0 or self._stopping or (not patient and self._rounds_failed > failed_before):
                        return False
                    self._poster.longest_s = left_s
                    pause_s = self._guarded_round()
                    if patient:
                        time.sleep(min(max(0.0, pause_s), left_s))
            return True
        finally:
            self._sending_here.release()

    def wait_for_round(self, timeout_s: float) -> bool:
        """Wait until the thread has ended a round, which may have made room; return False if the thread has stopped."""
        with self._round_ended:
            if not self._stopping:
                self._round_ended.wait(timeout_s)
        return not self._stopping

    def stop(self, timeout_s: float = 2.0) -> None:
        """Have the thread end after its current step, and wait for it at most ``timeout_s``."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
        elif self._without_thread:
            self._end()

    def leave_to_parent(self) -> None:
        """Give up the connection in a forked child, which has no sending thread; the connection is the parent's."""
        self._poster.leave_to_parent()

    def _run(self) -> None:
        with self.opening:
            codecs.lookup("idna")  # a connection needs it, and looking it up imports
        with _suppressed():
            while not self._stopping:
                pause_s = self._guarded_round()
                with self._round_ended:
                    self._round_ended.notify_all()
                if pause_s > 0:
                    self._wake.wait(pause_s)
                    self._wake.clear()
        self._end()

    def _end(self) -> None:
        self._poster.close()
        self._let_go()

    def _guarded_round(self) -> float:
        try:
            return self._round()
        except Exception as error:
            failures.note("sender", "lightning's sender met an error and goes on", error=error)
            return 1.0

    def _let_go(self) -> None:
        with self.opening:
            while self.adopted:
                self.adopted.pop().close()

    def _round(self) -> float:
        """Do one thing; return how long to sleep unless woken."""
        now = monotonic()
        if now < self._not_before:
            return self._not_before - now
        self._idle = True  # before looking: a span that comes after the look wakes us
        if now >= self._adopt_at and not self.adopted:
            self._adopt_at = now + _ADOPT_EVERY_S  # set first: a failure there must not hold up our own spans
            with self.opening:
                self.adopted = list(self._adopt())
            if self.adopted:
                self._adopt_at = now  # there may be more
        for spool in [*self._sources(), *self.adopted]:
            if not spool.rows:
                continue
            self._idle = False
            if not self._hurry and spool.rows < self._limit:
                self._wake.wait(_GATHER_S)  # a flush does not wait for more
            self._send(spool, spool.read(self._limit))
            return max(0.0, self._not_before - monotonic())
        self._let_go()
        if now >= self._idle_at:
            self._idle_at = now + _IDLE_EVERY_S
            self._when_idle()
        return max(0.01, min(self._adopt_at, self._idle_at) - now)

    def _send(self, spool: AnySpool, bodies: Sequence[bytes]) -> None:
        try:
            answer = self._poster.post(b"".join(bodies))
        except TlsError as error:
            self._retry_later(None, f"is not spoken to: {error}", "")
            return
        except OtherDaemonError as error:
            # Reported even if the right daemon was just reported as down; both count as one outage.
            failures.note("other-daemon", str(error))
            self._down = True
            self._retry_later(None, "is another project's", "")
            return
        except UnprovenDaemonError as error:
            self._retry_later(None, "has not proven itself", _capitalized(str(error)))
            return
        except (OSError, http.client.HTTPException) as error:
            self._retry_later(None, f"is not reachable ({error})", _advice_without_answer(error, self._endpoint))
            return
        if not answer.by_daemon:
            said = f"answers {answer.status} to spans ({answer.text()})"
            self._retry_later(answer, said, f"{_NOT_A_DAEMON}: check LIGHTNING_ENDPOINT")
        elif 200 <= answer.status < 300:
            self._accepted(spool, bodies, answer)
        elif answer.status in _TO_BLAME and len(bodies) > 1:
            self._limit = len(bodies) // 2
        elif answer.status in _TO_BLAME:
            self._put_aside(spool, bodies[0], answer)
        else:
            self._retry_later(answer, f"answers {answer.status} to spans ({answer.text()})", _advice(answer.status))

    def _accepted(self, spool: AnySpool, bodies: Sequence[bytes], answer: Answer) -> None:
        # Counted before they are forgotten, because code that waits until no span is left then reads the count.
        self.delivered += len(bodies)
        spool.forget(bodies)
        with self.opening:
            refused, why = _refused_spans(answer)
        if refused:
            failures.note("spans-refused", f"the daemon at {self._endpoint} did not store {refused} spans: {why}")
        self._limit = min(_MOST_ROWS, self._limit * 2)
        self._pause_s, self._not_before, self._asked_to_wait = 0.0, 0.0, False
        if self._down:
            self._down = False
            log.warning("the daemon at %s accepts spans again", self._endpoint)

    def _put_aside(self, spool: AnySpool, body: bytes, answer: Answer) -> None:
        reason = f"{answer.status}: {answer.text()}"
        self.rejected += 1
        spool.reject(body, reason)
        self._limit = min(_MOST_ROWS, self._limit * 2)
        failures.note(
            "span-rejected",
            f"the daemon at {self._endpoint} will not take a span ({reason}); it is "
            + (f"kept in {spool.rejected_path}" if spool.rejected_path else "lost, since it waited in memory"),
        )

    def _retry_later(self, answer: Answer | None, what: str, advice: str) -> None:
        shortest, longest = _PAUSE_S
        self._pause_s = min(longest, max(shortest, self._pause_s * 2))
        pause_s = self._pause_s * self._random.uniform(0.5, 1.0)
        self._asked_to_wait = answer is not None and answer.retry_after_s is not None
        if answer is not None and answer.retry_after_s is not None:
            # Never sooner than the daemon asked, and not all processes at the same moment.
            pause_s = min(answer.retry_after_s, _LONGEST_RETRY_AFTER_S) * self._random.uniform(1.0, 1.2)
        self._not_before = monotonic() + pause_s
        with self._round_ended:
            self._rounds_failed += 1
        if not self._down:
            self._down = True
            said = "the daemon at %s %s; spans wait until it takes them" + (". %s" if advice else "%s")
            log.warning(said, self._endpoint, what, advice)


def _capitalized(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:]


_NOT_A_DAEMON = "What answers there is not a lightning-trainer daemon"


def _advice_without_answer(error: Exception, endpoint: str) -> str:
    if isinstance(error, http.client.BadStatusLine) and not isinstance(error, ConnectionError):
        return f"{_NOT_A_DAEMON}, it does not speak HTTP: check LIGHTNING_ENDPOINT"
    advice = "Start it with `lightning-trainer serve`, or set LIGHTNING_ENDPOINT to where it runs"
    proxies = [name for name in os.environ if name.lower() in _PROXIES]
    if proxies and not on_this_machine(endpoint):
        return f"{advice}; the way there must need no proxy, since {proxies[0]} is not used for it"
    return advice


def _advice(status: int) -> str:
    if status in (401, 403):
        return "Set LIGHTNING_TOKEN to the daemon's token, which `lightning-trainer token` prints"
    if status == SPEAK_TLS:
        return "Write https:// in LIGHTNING_ENDPOINT"
    return "It is asked again until it does"


def _refused_spans(answer: Answer) -> tuple[int, str]:
    if not answer.body:
        return 0, ""
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    try:
        partial = ExportTraceServiceResponse.FromString(answer.body).partial_success
    except DecodeError:
        return 0, ""
    return partial.rejected_spans, partial.error_message


@contextlib.contextmanager
def _suppressed():
    """Keep every instrumentation in this process, the user's included, from tracing our own requests."""
    from opentelemetry import context

    key = getattr(context, "_SUPPRESS_INSTRUMENTATION_KEY", "suppress_instrumentation")
    token = context.attach(context.set_value("suppress_instrumentation", True, context.set_value(key, True)))
    try:
        yield
    finally:
        context.detach(token)
