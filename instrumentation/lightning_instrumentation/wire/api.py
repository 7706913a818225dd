"""The interface of a wire format. Requests, answers, and stream events are JSON, as plain dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.wire.answer import Answer

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What we request from the server beyond the caller's request: the caller must not see it."""

    token_ids: bool = False
    logprobs: bool = False

    def __bool__(self) -> bool:
        return self.token_ids or self.logprobs


NOTHING = Wanted()


class Api:
    """One wire format. Subclasses define the differences; by default nothing is requested and nothing hidden."""

    name: str
    """The format's name in the attribute ``lightning.api``."""
    operation: str = semconv.CHAT
    provider: str = "openai"
    within: str = ""
    """Text that the path must contain, in addition to its ending."""
    lines: bool = False
    """Whether a stream is lines of JSON."""

    def model(self, url: str, body: Json) -> str:
        """Return the model that a request names."""
        return str(body.get("model") or "")

    def asked(self, body: Json) -> Json:
        """Return sampling parameters, ``stream``, and ``tools`` of a request by OpenAI's names."""
        return body

    def fits(self, body: Json) -> bool:
        """Whether a request to the right path has the body of a model call: other services use such paths too."""
        raise NotImplementedError

    def wanted(self, body: Json) -> Wanted:
        """Return what to request in addition; fields that the caller has set stay as they are."""
        return NOTHING

    def additions(self, wanted: Wanted) -> dict[str, Any]:
        """Return the request fields that ask for what is wanted."""
        return {}

    def input_messages(self, body: Json) -> list[Any]:
        """Return a request's messages in the GenAI conventions' form."""
        raise NotImplementedError

    def answer(self) -> Answer:
        """Return a new, empty answer that reads this format."""
        raise NotImplementedError

    def hide(self, part: dict[str, Any], asked: Wanted) -> bool:
        """Remove from an answer or event what only we asked for; return whether that changed it."""
        return False

    def is_ours_alone(self, part: Json, asked: Wanted) -> bool:
        """Whether a (cleaned) stream event was sent only to carry what we asked for, and is now empty."""
        return False


def blank(thing: dict[str, Any], name: str) -> bool:
    """Set a field to null; return whether that changed it. Servers that know our fields send them as null unless they
    are asked for."""
    if thing.get(name) is None:
        return False
    thing[name] = None
    return True
