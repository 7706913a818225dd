"""Whatever the daemon does, each span is delivered in the end, or put aside and reported, and never lost in silence."""

import errno
import json
import logging
import socket
import threading
import time
from contextlib import suppress
from email.utils import formatdate

import lightning_instrumentation as lt
import pytest
from lightning_instrumentation import runtime
from lightning_instrumentation.delivery import outbox
from lightning_instrumentation.delivery import sender as sender_module
from lightning_instrumentation.delivery.loss_reports import Losses
from lightning_instrumentation.delivery.spool import endpoint_folder
from lightning_instrumentation.settings import checked_endpoint


@lt.agent("a")
def work(size: int = 0) -> None:
    pass


@pytest.fixture(autouse=True)
def quick_pauses(monkeypatch):
    monkeypatch.setattr(sender_module, "_PAUSE_S", (0.05, 0.2))
    monkeypatch.setattr(sender_module, "_GATHER_S", 0.02)


def reply(receiver, **fields):
    return type(receiver.decide([]))(**fields)


def after(receiver, answers, **failing):
    """Answer like that so many times, then accept."""
    remaining = [answers]
    accept = reply(receiver)
    refuse = reply(receiver, **failing)

    def decide(spans):
        remaining[0] -= 1
        return refuse if remaining[0] >= 0 else accept

    return decide


def test_spans_wait_for_a_daemon_that_is_down_and_arrive_when_it_is_up(recording, caplog):
    receiver = recording.receiver
    receiver.stop()
    with caplog.at_level(logging.WARNING, logger="lightning_instrumentation"):
        for _ in range(5):
            work()
        assert lt.flush(0.4) is False
        assert lt.stats().waiting == 5
        receiver.start()
        receiver.wait_for(5)
        assert lt.flush()
        patient_until = time.monotonic() + 5  # it is said when the answer has been read, a moment after
        while len(caplog.messages) < 2 and time.monotonic() < patient_until:
            time.sleep(0.01)
    stats = lt.stats()
    assert (stats.created, stats.delivered, stats.waiting, stats.dropped) == (5, 5, 0, 0)
    assert [("not reachable" in m, "again" in m) for m in caplog.messages] == [(True, False), (False, True)]


@pytest.mark.parametrize("status", [401, 404, 429, 500, 503])
def test_a_daemon_in_trouble_is_tried_again(recording, status):
    recording.receiver.decide = after(recording.receiver, 2, status=status)
    work()
    recording.receiver.wait_for(1)
    assert [status for _, status, _ in recording.receiver.posts] == [status, status, 200]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        # Before, for each: "Start it with `lightning-trainer serve`", though something runs there
        (
            {"status": 401, "body": b"no"},
            "answers 401 to spans (no); spans wait until it takes them. Set LIGHTNING_TOKEN",
        ),
        ({"status": 404}, "answers 404 to spans (); spans wait until it takes them. What answers there is not a light"),
        (
            {"status": 400, "headers": {"Content-Type": "text/html"}},
            "What answers there is not a lightning-trainer daemon",
        ),
        (
            {"status": 200, "headers": {"Content-Type": "text/html"}},
            "What answers there is not a lightning-trainer daemon",
        ),
        ({"status": 200, "headers": {"Content-Type": "application/json"}}, "is not a lightning-trainer daemon: check"),
        (
            {"status": 503, "body": b"busy"},
            "answers 503 to spans (busy); spans wait until it takes them. It is asked",
        ),
    ],
)
def test_a_daemon_that_is_not_there_is_told_from_one_that_refuses_and_from_another_service(
    recording, caplog, answer, sentence
):
    recording.receiver.decide = after(recording.receiver, 1, **answer)
    with caplog.at_level(logging.WARNING, logger="lightning_instrumentation"):
        work()
        recording.receiver.wait_for(1)
    assert sentence in caplog.messages[0]
    assert lt.flush()
    assert lt.stats().waiting == 0


def test_what_is_no_http_server_is_called_one(recording, caplog, tmp_path):
    recording.receiver.stop()
    with socket.create_server(("127.0.0.1", recording.receiver.port)) as other:

        def greet() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = other.accept()
                    connection.recv(1 << 16)
                    connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                    connection.close()

        threading.Thread(target=greet, daemon=True).start()
        with caplog.at_level(logging.WARNING, logger="lightning_instrumentation"):
            work()
            assert lt.flush(0.5) is False
    assert "is not a lightning-trainer daemon, it does not speak HTTP" in caplog.messages[0]


def test_the_endpoint_may_be_written_as_an_exporter_has_it(monkeypatch):
    for written in ("http://d:8321", "http://d:8321/", "http://d:8321/v1", "http://d:8321/v1/traces"):
        assert checked_endpoint(written) == "http://d:8321"
    assert checked_endpoint("http://proxy/lightning/v1/") == "http://proxy/lightning"


@pytest.mark.parametrize(
    "written", ["http://ann:secret@d:8321", "https://ann:secret@d", "ann:secret@d", "http://secret@d"]
)
def test_a_password_in_the_endpoint_is_refused_and_not_repeated(written):
    with pytest.raises(lt.ConfigurationError, match="names a user or a password") as raised:
        checked_endpoint(written)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("as_date", [False, True])
def test_a_daemon_that_asks_for_time_gets_it(recording, as_date):
    wait = formatdate(time.time() + 2, usegmt=True) if as_date else "0.5"
    recording.receiver.decide = after(recording.receiver, 1, status=503, headers={"Retry-After": wait})
    began = time.monotonic()
    work()
    recording.receiver.wait_for(1)
    assert time.monotonic() - began >= 0.45
    assert len(recording.receiver.posts) == 2


def test_a_body_that_is_too_large_is_split_until_it_fits(recording):
    receiver = recording.receiver
    accept, too_large = reply(receiver), reply(receiver, status=413)
    receiver.stop()
    for _ in range(20):
        work()
    receiver.decide = lambda spans: accept if len(spans) <= 3 else too_large
    receiver.start()
    receiver.wait_for(20)
    assert lt.flush()
    assert (lt.stats().delivered, lt.stats().rejected) == (20, 0)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_the_one_span_to_blame_is_put_aside_and_the_rest_arrive(recording, tmp_path, caplog, status):
    receiver = recording.receiver
    accept, refuse = reply(receiver), reply(receiver, status=status, body=b"cannot read it")
    receiver.stop()
    for _ in range(6):
        work()
    lt.agent("poison")(work)()
    for _ in range(6):
        work()
    receiver.decide = lambda spans: refuse if any("poison" in span.name for span in spans) else accept
    before = lt.stats().failed.get("span-rejected", 0)
    receiver.start()
    receiver.wait_for(13)  # the poisoned call holds an ordinary one
    # One more than there were calls: it says that a span was refused, and may be put just after a flush has returned.
    deadline = time.monotonic() + 10.0
    while lt.stats().delivered < 14 and time.monotonic() < deadline:
        assert lt.flush()
        time.sleep(0.01)
    stats = lt.stats()
    assert (stats.created, stats.delivered, stats.rejected, stats.waiting) == (15, 14, 1, 0)
    assert stats.failed["span-rejected"] == before + 1
    lt.shutdown()
    (file,) = endpoint_folder(tmp_path, receiver.url).glob("*.rejected")
    (line,) = file.read_text().splitlines()
    assert json.loads(line)["reason"] == f"{status}: cannot read it"


@pytest.mark.long
def test_a_slow_daemon_does_not_slow_the_agent(recording):
    slow = reply(recording.receiver, delay_s=1.0)
    recording.receiver.decide = lambda spans: slow
    began = time.monotonic()
    for _ in range(50):
        work()
    assert time.monotonic() - began < 0.5
    recording.receiver.wait_for(50)


@pytest.mark.parametrize("is_local", [True, False], ids=["to this machine", "to another"])
def test_a_token_is_sent_and_large_bodies_are_compressed_where_there_is_a_network(
    is_local, receiver, tmp_path, monkeypatch
):
    from lightning_instrumentation.delivery import post

    if not is_local:
        monkeypatch.setattr(post, "LOOPBACK", "nowhere")
    lt.shutdown(0.0)
    receiver.token = "t0ken"
    lt.init(receiver.url, token="t0ken", spool_dir=tmp_path)
    with lt.rollout("t", input="x" * 5000):
        pass
    assert lt.flush()
    lt.shutdown()
    (_, _, headers) = receiver.posts[0]
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["authorization"] == "Bearer t0ken"
    assert headers.get("content-encoding") == (None if is_local else "gzip")
    assert headers["content-type"] == "application/x-protobuf"


def test_our_own_requests_are_suppressed_for_every_instrumentation(recording, monkeypatch):
    from lightning_instrumentation.delivery.post import Poster
    from opentelemetry import context

    seen = []
    post = Poster.post

    def watched(self, body):
        seen.append(context.get_value("suppress_instrumentation"))
        return post(self, body)

    monkeypatch.setattr(Poster, "post", watched)
    work()
    recording.receiver.wait_for(1)
    assert seen == [True]


def test_what_cannot_be_taken_over_keeps_no_span_of_this_process_waiting(recording, monkeypatch):
    """Before, each round ended there, and nothing was ever sent."""

    def refuse(*_, **__):
        raise PermissionError("another user's")

    monkeypatch.setattr(outbox, "orphans_in", refuse)
    work()
    recording.receiver.wait_for(1)
    assert lt.flush()


def test_a_full_spool_drops_the_newest_and_says_so_once(recording, tmp_path, caplog):
    recording.receiver.stop()
    lt.shutdown(0.0)
    lt.init(recording.receiver.url, spool_dir=tmp_path / "small", spool_limit_bytes=200_000)
    with caplog.at_level(logging.ERROR, logger="lightning_instrumentation"):
        for _ in range(8):
            with lt.rollout("t", input="x" * 40_000):
                pass
    stats = lt.stats()
    assert stats.dropped > 0
    assert stats.waiting + stats.dropped == 8
    assert stats.failed["spool-full"] >= stats.dropped
    recording.receiver.start()
    recording.receiver.wait_for(stats.waiting)


def small_spool(recording, tmp_path, **options):
    recording.receiver.stop()
    lt.shutdown(0.0)
    lt.init(recording.receiver.url, spool_dir=tmp_path / "small", spool_limit_bytes=200_000, **options)


def large_span() -> None:
    with lt.rollout("t", input="x" * 40_000):
        pass


def test_a_spool_that_was_full_takes_spans_again_when_it_was_emptied(recording, tmp_path):
    small_spool(recording, tmp_path)
    for _ in range(8):
        large_span()
    dropped = lt.stats().dropped
    assert dropped > 0
    recording.receiver.start()
    assert lt.flush(10)
    running = runtime.runtime()
    assert running is not None
    running.outbox._measure_at = 0.0  # ten seconds later
    recording.receiver.stop()
    large_span()
    assert lt.stats().dropped == dropped
    recording.receiver.start()
    assert lt.flush(10)


def test_a_full_spool_that_blocks_loses_nothing_while_the_daemon_is_only_slow(recording, tmp_path):
    small_spool(recording, tmp_path, spool_full="block", spool_block_s=30)
    threading.Timer(0.3, recording.receiver.start).start()
    for _ in range(12):
        large_span()
    assert lt.flush(10)
    assert (lt.stats().dropped, lt.stats().delivered) == (0, 12)


def test_a_full_spool_that_blocks_waits_no_longer_than_was_said_and_once(recording, tmp_path):
    small_spool(recording, tmp_path, spool_full="block", spool_block_s=0.3)
    began = time.monotonic()
    for _ in range(12):
        large_span()
    assert 0.3 <= time.monotonic() - began < 5
    stats = lt.stats()
    assert stats.dropped > 1
    assert stats.dropped + stats.waiting == 12
    recording.receiver.start()
    assert lt.flush(10)


def test_where_the_disk_cannot_be_written_spans_wait_in_memory(recording, tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(Losses, "tell", lambda self, runtime: None)  # which would be a fourth span, sooner or later
    recording.receiver.stop()
    lt.shutdown(0.0)
    blocked = tmp_path / "file"
    blocked.write_text("a file is not a folder")
    lt.init(recording.receiver.url, spool_dir=blocked)
    for _ in range(3):
        work()
    assert lt.stats().waiting == 3
    assert lt.stats().failed["spool-not-writable"] >= 1
    recording.receiver.start()
    recording.receiver.wait_for(3)


def test_a_disk_that_fails_later_on_makes_spans_wait_in_memory(recording, monkeypatch):
    def full(*written: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    work()
    assert lt.flush()
    recording.receiver.stop()
    monkeypatch.setattr("lightning_instrumentation.delivery.segment.os.pwrite", full)
    work()
    monkeypatch.undo()
    running = runtime.runtime()
    assert running is not None
    disk, memory = running.outbox._spools()
    assert (disk.rows, memory.rows) == (0, 1)
    recording.receiver.start()
    recording.receiver.wait_for(2)


def test_many_threads_write_at_once_and_nothing_is_lost(recording):
    threads = [threading.Thread(target=lambda: [work() for _ in range(50)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recording.receiver.wait_for(400)
    assert lt.flush()
    assert lt.stats().delivered == 400


def test_init_says_what_is_wrong_and_use_without_a_usable_endpoint_breaks_nothing(monkeypatch, caplog):
    lt.shutdown(0.0)
    with pytest.raises(lt.ConfigurationError, match="'localhost:8321'"):
        lt.init("localhost:8321")
    with pytest.raises(lt.ConfigurationError, match="trusted host 'a:b:c'"):
        lt.init("http://localhost:1", trusted_hosts=["a:b:c"])
    monkeypatch.setenv("LIGHTNING_ENDPOINT", "nonsense")
    with caplog.at_level(logging.ERROR, logger="lightning_instrumentation"), lt.rollout("t"):
        work()
        lt.reward(1)
    assert len(caplog.records) == 1
    assert "'nonsense'" in caplog.text
    assert lt.flush() is True
    monkeypatch.setattr(runtime, "_unusable", False)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [("http://gpu-box:8321", True), ("http://localhost:8321", False), ("http://[::1]:8321", False)],
)
def test_where_a_proxy_is_configured_it_is_said_that_it_is_not_used(endpoint, said, monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://user:secret@proxy:3128")
    for name in ("HTTP_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    advice = sender_module._advice_without_answer(ConnectionRefusedError("refused"), endpoint)
    assert ("HTTPS_PROXY is not used" in advice) is said
    assert "secret" not in advice
