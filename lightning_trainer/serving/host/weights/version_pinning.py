"""Version pinning: a request that may generate gets one version of one policy for the whole of its response."""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from lightning_trainer.serving.host.asgi import Message, Receive

POLICY_HEADER = "x-lightning-policy"
VERSION_HEADER = "x-lightning-policy-version"
"""On an answer: what sampled it. On a request to an engine of adapters: the version that is asked for."""


class Sampler(NamedTuple):
    policy: str
    version: int


class PinnedRequest(NamedTuple):
    receive: Receive
    """What the app reads, which may differ from what was sent."""
    sampler: Sampler | None
    """None where the request names no policy; vLLM says what is wrong with it."""


class VersionPinning(Protocol):
    def pin(self, scope: Message, receive: Receive) -> AbstractAsyncContextManager[PinnedRequest]:
        """Hold the version while the block runs."""
        ...
