"""What a request that may generate goes through: it gets one version of one policy for the whole of its response."""

from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol

from lightning_trainer.serving.host.asgi import Message, Receive

POLICY_HEADER = "x-lightning-policy"
VERSION_HEADER = "x-lightning-policy-version"
"""On an answer: what sampled it. On a request to an engine of adapters: the version that is asked for."""


class Sampler(NamedTuple):
    policy: str
    version: int


class Passage(NamedTuple):
    receive: Receive
    """What the app reads, which may differ from what was sent."""
    sampler: Sampler | None
    """None where the request names no policy; vLLM says what is wrong with it."""


class Passages(Protocol):
    def passage(self, scope: Message, receive: Receive) -> AbstractAsyncContextManager[Passage]:
        """Hold the version while the block runs."""
        ...
