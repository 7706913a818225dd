"""What stands in for a control store that has died: whoever asks it anything is told no, at once."""

import socket

import pytest

from lightning_trainer.training.on_ray.refusal import Refusal


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def asked(port: int) -> str:
    """Return the name of gRPC's status."""
    import grpc

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call = channel.unary_unary("/ray.rpc.InternalKVGcsService/InternalKVGet")
        with pytest.raises(grpc.RpcError) as raised:
            call(b"anything", timeout=20)
    return raised.value.code().name  # pyright: ignore[reportAttributeAccessIssue]


def test_whatever_is_asked_is_refused_until_the_end_and_at_the_newest_port_alone():
    refusal, first, second = Refusal(), free_port(), free_port()
    refusal.begin(first)
    refusal.begin(first)
    assert asked(first) == "PERMISSION_DENIED"
    refusal.begin(second)
    assert asked(second) == "PERMISSION_DENIED"
    assert asked(first) == "UNAVAILABLE"
    refusal.end()
    assert asked(second) == "UNAVAILABLE"
    refusal.end()


def test_a_port_that_another_server_has_is_left_to_it():
    with socket.create_server(("127.0.0.1", 0)) as other:
        refusal = Refusal()
        refusal.begin(other.getsockname()[1])
        refusal.end()
