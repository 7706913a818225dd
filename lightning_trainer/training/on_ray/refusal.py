"""Takes the place of Ray's control store (GCS) after it died, and refuses every request.

Ray is configured to wait for a missing control store (``set_ray_environment``), because it would end the process
otherwise. If one dies while Ray is being started, it never comes back, and the start would wait for a year. Any answer
ends that.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc


class Refusal:
    """A server on one loopback port at a time: the one given to ``begin``, until ``end``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: grpc.Server | None = None
        self._port: int | None = None

    def begin(self, port: int) -> None:
        """Listen on the port; do nothing if it already does, or if another server has taken the port."""
        with self._lock:
            if port == self._port:
                return
            self._stop()
            server = grpc.server(
                ThreadPoolExecutor(1, thread_name_prefix="ray-refusal"),
                handlers=[_Refusing()],
                options=(("grpc.so_reuseport", 0),),
            )
            try:
                server.add_insecure_port(f"127.0.0.1:{port}")
            except RuntimeError:
                return
            server.start()
            self._server, self._port = server, port

    def end(self) -> None:
        """Stop answering."""
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._server is not None:
            self._server.stop(None).wait()
        self._server = self._port = None


class _Refusing(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return grpc.unary_unary_rpc_method_handler(_refuse)


def _refuse(request: bytes, context: grpc.ServicerContext) -> None:
    # Ray retries after UNAVAILABLE and UNKNOWN.
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "Ray's gcs_server died while Ray was being started")
