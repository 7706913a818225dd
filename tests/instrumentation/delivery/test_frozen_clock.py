"""A frozen clock of the program's stops nothing of ours: freezegun replaces ``time.monotonic`` wherever it finds it."""

import sys
import threading
import time

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation.access import proof as proofs
from lightning_instrumentation.access.known import KnownDaemon, remember
from lightning_instrumentation.access.proof import Access
from lightning_instrumentation.routing.router import Router

REAL = time.monotonic


@pytest.fixture
def freeze(monkeypatch):
    """Freeze the clock in every module that is loaded, as freezegun does; it leaves Python's threading alone."""

    def frozen() -> None:
        now = REAL()

        def stopped() -> float:
            return now

        for module in list(sys.modules.values()):
            names = (
                [name for name, value in vars(module).items() if value is REAL] if hasattr(module, "__dict__") else []
            )
            if module.__name__ not in ("threading", "queue", __name__):
                for name in names:
                    monkeypatch.setattr(module, name, stopped)
        assert time.monotonic() == time.monotonic() == now

    return frozen


def test_flush_ends_where_the_daemon_is_away(tmp_path, freeze):
    lt.shutdown(0.0)
    lt.init("http://127.0.0.1:9", token="none", spool_dir=tmp_path)
    freeze()
    lt.reward(1.0, rollout_id="r")
    ended = []
    flushing = threading.Thread(target=lambda: ended.append(lt.flush(0.2)), daemon=True)
    flushing.start()
    flushing.join(10.0)
    assert ended == [False]
    lt.shutdown(0.0)


def test_what_is_routed_is_asked_for_again(begin, daemon, freeze):
    begin(refresh_s=0.05)
    router = Router(Access(daemon.url))
    freeze()
    for asked in (1, 2, 3):
        router.policy_of("writer")
        until = REAL() + 10.0
        while daemon.asked < asked and REAL() < until:
            time.sleep(0.06)
            router.policy_of("writer")
        assert daemon.asked >= asked


def test_a_proof_does_not_hold_for_ever(daemon, freeze, monkeypatch):
    monkeypatch.setattr(proofs, "_HOLDS_S", 0.05)
    daemon.token = "the-token"
    remember(daemon.url, KnownDaemon("the-token"))
    access = Access(daemon.url)
    freeze()
    access.open(5.0)[0].close()
    time.sleep(0.1)
    assert access.is_due()
