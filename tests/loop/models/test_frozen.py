"""One policy is trained, its neighbor is frozen, and a third agent is nobody's: neither of the two is touched."""

import hashlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from lightning_trainer.models.resolve import model_cache, resolve_model

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "frozen_script.py"
POLICY = """
[[policy]]
name = "{name}"
agents = ["{name}"]
model = "random:tiny"
group_size = 2
groups_per_step = 1
max_sample_tokens = 256
optimizer.lr = 1e-2
"""
STEPS = 2


class Wire:
    """A TCP relay in front of a server that keeps every byte that was sent to it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = threading.Lock()
        self.sent: list[bytearray] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def taken(self) -> bytes:
        """Return what was sent since it was last asked, without what is new for every process: the port's number."""
        with self._lock:
            sent, self.sent = b"".join(bytes(one) for one in self.sent), []
        return sent

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._port))
            kept = bytearray()
            with self._lock:
                self.sent.append(kept)
            threading.Thread(target=_relay, args=(client, server, kept), daemon=True).start()
            threading.Thread(target=_relay, args=(server, client, bytearray()), daemon=True).start()


def _relay(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    try:
        while data := source.recv(65536):
            kept += data
            sink.sendall(data)
    except OSError:
        pass
    finally:
        source.close()
        sink.close()


@pytest.fixture
def wire(elsewhere: str) -> Iterator[Wire]:
    wire = Wire(int(elsewhere.rpartition(":")[2].removesuffix("/v1")))
    yield wire
    wire.close()


@pytest.fixture(scope="module")
def daemon(make_daemon) -> Iterator:
    policies = POLICY.format(name="planner") + POLICY.format(name="judge") + "train = false\n"
    with make_daemon(policies).running("planner", "judge") as daemon:
        yield daemon


def test_what_is_frozen_and_what_is_nobodys_are_left_as_they_were(daemon, wire: Wire):
    model = resolve_model("random:tiny", model_cache()) / "model.safetensors"
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    before = {name: (daemon.policy(name)["versions"], daemon.logprobs(name)) for name in ("planner", "judge")}
    bare = daemon.script(SCRIPT, "--bare", ELSEWHERE=wire.url)
    sent_bare = wire.taken()

    captured = daemon.script(SCRIPT, "--steps", str(STEPS), ELSEWHERE=wire.url)

    assert daemon.policy("planner")["steps_done"] == STEPS
    assert max(abs(a - b) for a, b in zip(daemon.logprobs("planner"), before["planner"][1], strict=True)) > 1e-3
    # The frozen one: version 0, with the checksum, the served probe and the start's file that it had.
    judge = daemon.policy("judge")
    assert (judge["phase"], judge["steps_done"], judge["live_version"]) == ("serving", 0, 0)
    assert (judge["versions"], daemon.logprobs("judge")) == before["judge"]
    assert hashlib.sha256(model.read_bytes()).hexdigest() == digest
    assert len(load_file(model)) > 0
    assert daemon.processes("judge")["trainer"] is None
    with daemon.database() as database:
        assert database.execute("SELECT count(*) FROM steps WHERE policy = 'judge'").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM assignments WHERE policy = 'judge'").fetchone() == (0,)
    reasons = {(row["agent"], row["reason"]) for row in daemon.policy("planner")["ledger"]}
    assert reasons == {("planner", "sampled"), ("judge", "other_policy")}
    # Nobody's: the same answer to the same bytes, headers and key included, as without us.
    assert captured == bare
    assert wire.taken() == sent_bare
    assert b"secret-of-the-outsider" in sent_bare
    assert b"traceparent" not in sent_bare
