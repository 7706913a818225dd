"""The one client of this process: started by ``init`` or by the first use, and stopped by ``shutdown``.

The code that writes and sends spans is imported when the client starts, not with the package, so that importing the
package stays cheap.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.delivery import deferred
from lightning_instrumentation.errors import ConfigurationError
from lightning_instrumentation.failures import failures, guarded, log
from lightning_instrumentation.routing.hosts import Hosts
from lightning_instrumentation.routing.router import Router
from lightning_instrumentation.scope import set_ambient, set_default_agent
from lightning_instrumentation.settings import RedactionRule, Settings, read_settings
from lightning_instrumentation.spans.sequence import sequences

if TYPE_CHECKING:
    from lightning_instrumentation.delivery.outbox import Outbox
    from lightning_instrumentation.redaction.spans import Editor
    from lightning_instrumentation.spans.tracing import Tracer


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts of this process since it started."""

    created: int = 0
    """Spans started."""
    delivered: int = 0
    """Spans that the daemon has accepted, including those adopted from processes that have died."""
    waiting: int = 0
    """Spans of this process that the daemon has not accepted yet."""
    rejected: int = 0
    """Spans that the daemon will never accept; kept in a file ``*.rejected`` next to the spool."""
    dropped: int = 0
    """Spans lost because the spool was full or could not be written."""
    failed: Mapping[str, int] = field(default_factory=dict)
    """What could not be captured, by reason."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """The running client: its settings, and the parts that make spans, deliver them, and route calls."""

    settings: Settings
    hosts: Hosts
    tracer: Tracer
    outbox: Outbox
    editor: Editor
    """Removes from a span what must not be recorded."""
    router: Router


_KEPT = ("capture_content", "redact", "route")
"""Settings that outlast ``shutdown`` until the next ``lt.init``: what was private stays private in a client that a
decorator starts again."""
_OF_DELIVERY = ("endpoint", "token", "ca_file", "spool_dir", "spool_limit_bytes", "spool_full", "spool_block_s")
"""Settings that hold for everything that a client records."""

_runtime: Runtime | None = None
_given: dict[str, Any] = {}
"""The settings that the running client was given by ``lt.init``, by name; the others come from the environment."""
_unusable = False
_stopped = False
"""Whether ``lt.shutdown`` has stopped the client, and nothing has started it since."""
_lock = threading.RLock()


def init(
    endpoint: str | None = None,
    *,
    agent: str | None = None,
    service_name: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    trusted_hosts: Iterable[str] = (),
    spool_dir: str | os.PathLike[str] | None = None,
    spool_limit_bytes: int | None = None,
    spool_full: str | None = None,
    spool_block_s: float | None = None,
    max_body_bytes: int | None = None,
    capture_content: bool | None = None,
    redact: RedactionRule | Iterable[RedactionRule] | None = None,
    route: bool | None = None,
) -> None:
    """Start recording with these settings; without ``init``, the first use of anything else starts it.

    A later call changes only the settings that it names. Before the first span it can change any of them; after that,
    only those that say what is recorded and routed from then on. ``endpoint``, ``token``, ``ca_file``, and the
    ``spool_`` settings then stay as they are until ``shutdown``, and a call that would change them logs a warning.

    Args:
        endpoint: base URL of the daemon (``LIGHTNING_ENDPOINT``, else http://127.0.0.1:8321).
        agent: agent for model calls for which no decorator and no framework names one (``LIGHTNING_AGENT``).
        service_name: name of this program (``OTEL_SERVICE_NAME``, else the script's).
        token: the daemon's token (``LIGHTNING_TOKEN``, else the one that a daemon of the same user has left for its
            clients); ``"none"`` for a daemon without a token. Before anything is sent to a daemon with a token, the
            daemon proves that it has that token.
        ca_file: certificates (PEM) of the authorities that sign the certificate of an https endpoint
            (``LIGHTNING_CA_FILE``); else the certificate that a daemon of the same user has left for its clients, else
            the machine's authorities (``SSL_CERT_FILE``).
        trusted_hosts: inference servers, in addition to the endpoint, that may get trace context and requests for token
            ids: ``host``, ``host:port``, or URLs (``LIGHTNING_TRUSTED_HOSTS``, separated by commas). Requests to any
            other host are not changed, not even those behind a redirect.
        spool_dir: folder where spans wait for the daemon (``LIGHTNING_SPOOL_DIR``, else the XDG state directory).
        spool_limit_bytes: most bytes that may wait there (``LIGHTNING_SPOOL_LIMIT_BYTES``, else 1 GiB).
        spool_full: what happens to a span beyond that limit: ``drop`` (the default) loses it, counts it, and logs this
            once; ``block`` makes the thread that ends the span wait for room (``LIGHTNING_SPOOL_FULL``).
        spool_block_s: longest such wait, in seconds (``LIGHTNING_SPOOL_BLOCK_S``, else 5); then the span is dropped.
        max_body_bytes: longest request or answer that is read (``LIGHTNING_MAX_BODY_BYTES``, else 16 MiB); longer ones
            are counted and not parsed.
        capture_content: False records no messages, tool arguments, results, or error texts; token ids are still
            recorded (``LIGHTNING_CAPTURE_CONTENT``).
        redact: what is removed from texts before they are written or sent: ``"emails"``, ``"regex:..."``, compiled
            patterns, functions from text to text, or several of these (``LIGHTNING_REDACT``). Keys are always removed,
            except with ``"none"``, which removes nothing. If a function raises, the text is left out.
        route: False sends every call where it would go without us; otherwise, calls of agents that a policy claims go
            to the daemon's gateway (``LIGHTNING_ROUTE``, ``LIGHTNING_ROUTE_FALLBACK``).

    Raises:
        ConfigurationError: a value cannot be used.
    """
    arguments: dict[str, Any] = {
        "endpoint": endpoint,
        "agent": agent,
        "service_name": service_name,
        "token": token,
        "ca_file": ca_file,
        "trusted_hosts": trusted_hosts,
        "spool_dir": spool_dir,
        "spool_limit_bytes": spool_limit_bytes,
        "max_body_bytes": max_body_bytes,
        "capture_content": capture_content,
        "spool_full": spool_full,
        "spool_block_s": spool_block_s,
        "redact": redact,
        "route": route,
    }
    given = [name for name, value in arguments.items() if value is not None and value != ()]
    with _lock:
        wanted = read_settings(**arguments)
        if _runtime is None:
            _given.clear()
        _given.update({name: getattr(wanted, name) for name in given})
        if _runtime is None:
            _start(wanted)
        elif not _runtime.outbox.spans_started:  # nothing depends on it yet, so another client replaces it
            # The environment is read again: a program may have loaded a file of settings in the meantime.
            wanted = replace(wanted, **_given)
            if wanted != _runtime.settings:
                _start(wanted)
            _install_hooks()  # they may have been removed since
        else:
            _change(_runtime, {name: getattr(wanted, name) for name in given})
            _install_hooks()


def _change(started: Runtime, named: Mapping[str, Any]) -> None:
    """Apply the named settings to a client that has recorded something, as far as they can still change."""
    global _runtime
    changed = {name: value for name, value in named.items() if value != getattr(started.settings, name)}
    late = [name for name in changed if name in _OF_DELIVERY]
    if late:
        log.warning(
            "lightning already records for %s, and lt.init(%s) comes too late for that: call it before anything is "
            "recorded, or call lt.shutdown() first",
            started.settings.endpoint,
            ", ".join(f"{name}=..." for name in late),
        )
    heeded = {name: value for name, value in changed.items() if name not in late}
    if heeded:
        _runtime = _assembled(replace(started.settings, **heeded), started.router.access, started.outbox)


def running() -> Runtime | None:
    """Return the running client; None if nothing has started it."""
    return _runtime


def runtime(settings: Settings | None = None, *, again: bool = False) -> Runtime | None:
    """Return the running client, starting it if necessary; None if it cannot run. Never raises.

    Args:
        settings: the settings to start it with, in place of the environment's.
        again: whether to start a client that ``shutdown`` has stopped: True in functions that the program itself calls,
            not in hooks.
    """
    if _runtime is not None or _unusable or (_stopped and not again and settings is None):
        return _runtime
    with _lock:
        if _runtime is None and not _unusable:
            try:
                if settings is None:
                    settings = replace(read_settings(), **_given)
                else:
                    _given.update({setting.name: getattr(settings, setting.name) for setting in fields(settings)})
                _start(settings, hook_again=False)
            except Exception as error:
                _give_up(error)
        return _runtime


def _give_up(error: Exception) -> None:
    global _unusable
    _unusable = True
    if isinstance(error, ConfigurationError):
        log.error("lightning records nothing: %s", error)
    else:
        log.error("lightning records nothing: it could not start (%s: %s)", type(error).__name__, error)


def _start(settings: Settings, *, hook_again: bool = True) -> None:
    global _runtime, _unusable, _stopped
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        log.warning("OTEL_SDK_DISABLED is set: lightning records nothing; unset it to record")
        _unusable = True
        return
    from lightning_instrumentation.delivery.outbox import Outbox
    from lightning_instrumentation.hooks.foreign_spans import agent_here

    access = Access(settings.endpoint, settings.token, ca_file=settings.ca_file)
    started = _assembled(settings, access, Outbox(settings, access))
    sequences.renew()
    set_ambient(agent_here)
    started.outbox.when_idle = _tell_losses
    _runtime, _unusable, _stopped = started, False, False
    _install_hooks(again=hook_again)


def _install_hooks(*, again: bool = True) -> None:
    from lightning_instrumentation.hooks.registry import install_hooks

    install_hooks(again=again)


def _assembled(settings: Settings, access: Access, outbox: Outbox) -> Runtime:
    from lightning_instrumentation.redaction.rules import redactor
    from lightning_instrumentation.redaction.spans import Editor

    hosts = Hosts(settings.endpoint, settings.trusted_hosts)
    editor = Editor(redactor(settings.redact), capture_content=settings.capture_content)
    router = Router(access, enabled=settings.route, fallback=settings.route_fallback)
    set_default_agent(settings.agent)
    return Runtime(settings, hosts, _tracer(settings, outbox, editor), outbox, editor, router)


def _tracer(settings: Settings, outbox: Outbox, editor: Editor) -> Tracer:
    from lightning_instrumentation.spans.tracing import Tracer

    return Tracer(settings.service_name, outbox.put, outbox.started, editor)


def _tell_losses() -> None:
    """Report what could not be captured; if there is nothing, the code for it is not even imported."""
    if _runtime is not None and failures.counts():
        with _lock:  # so that a fork waits for the import
            from lightning_instrumentation.delivery.loss_reports import losses
        guarded("losses", losses.tell, _runtime.tracer)


def deliver_at_exit() -> None:
    """Deliver what can be delivered quickly, because this process is about to end."""
    deferred.program_ends()
    deferred.do_waiting()
    _tell_losses()
    if _runtime is not None:
        _runtime.outbox.close_at_exit()


def _before_fork() -> None:
    _lock.acquire()  # a thread that is just starting the client finishes first
    if _runtime is not None:
        _runtime.outbox.before_fork()


def _after_fork() -> None:
    if _runtime is not None:
        _runtime.outbox.after_fork_in_parent()
    _lock.release()


def _in_child() -> None:
    global _lock, _runtime
    _lock = threading.RLock()
    failures.in_child()
    if "lightning_instrumentation.delivery.loss_reports" in sys.modules:
        sys.modules["lightning_instrumentation.delivery.loss_reports"].losses.in_child()
    sequences.renew()
    deferred.forget()
    if _runtime is not None:
        _runtime.outbox.after_fork_in_child()
        # A new tracer, because the child's spans say which process they come from.
        tracer = _tracer(_runtime.settings, _runtime.outbox, _runtime.editor)
        _runtime = replace(_runtime, tracer=tracer, router=_runtime.router.in_child())


# Registered once per process, at import: these functions look up the runtime, so they serve whichever one is running.
atexit.register(deliver_at_exit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def flush(timeout_s: float = 5.0) -> bool:
    """Wait until the daemon has accepted every span of this process; return False if it has not after ``timeout_s``."""
    deferred.do_waiting()
    _tell_losses()
    return True if _runtime is None else _runtime.outbox.flush(timeout_s)


def shutdown(timeout_s: float = 5.0) -> None:
    """Deliver what can be delivered within ``timeout_s`` seconds, leave the rest on disk, and stop recording.

    The next ``init`` starts recording again, with only its own settings. So does the next block, decorated function,
    prompt, reward, or feedback, which keeps ``capture_content``, ``redact``, and ``route`` as they were. A model call
    alone does not start it again.
    """
    global _runtime, _stopped
    deferred.do_waiting()
    _tell_losses()
    with _lock:
        stopping, _runtime, _stopped = _runtime, None, True
        for name in _given.keys() - set(_KEPT):
            del _given[name]
    if stopping is not None:
        stopping.outbox.close(timeout_s)
        set_default_agent(None)


def stats() -> Stats:
    """Return the counts so far; without a running client, only those of failures."""
    counts = failures.counts()
    if _runtime is None:
        return Stats(failed=counts)
    outbox = _runtime.outbox
    return Stats(
        created=outbox.spans_started,
        delivered=outbox.sender.delivered,
        waiting=outbox.waiting,
        rejected=outbox.sender.rejected,
        dropped=outbox.dropped,
        failed=counts,
    )
