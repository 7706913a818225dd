"""What every wire format has to say of itself. Requests, answers and stream events are JSON, as plain dicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.wire.answer import Answer

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What we ask the server for on top of what the caller asked: the caller must not see it."""

    token_ids: bool = False
    logprobs: bool = False

    def __bool__(self) -> bool:
        return self.token_ids or self.logprobs


NOTHING = Wanted()


class Api:
    """One wire format. Subclasses say what differs; the defaults ask for nothing and hide nothing."""

    name: str
    """As in ``lightning.api``."""
    operation: str = semconv.CHAT
    provider: str = "openai"
    within: str = ""
    """What the path has in it besides its ending."""
    lines: bool = False
    """Whether a stream is lines of JSON."""

    def model(self, url: str, body: Json) -> str:
        """Return the model that a request names."""
        return str(body.get("model") or "")

    def asked(self, body: Json) -> Json:
        """Return sampling parameters, ``stream`` and ``tools`` of a request by OpenAI's names."""
        return body

    def fits(self, body: Json) -> bool:
        """Whether a request to the right path has the body of a model call: other services use such paths too."""
        raise NotImplementedError

    def wanted(self, body: Json) -> Wanted:
        """Return what the caller left open of what we need; what they set, whatever it is, stays."""
        return NOTHING

    def additions(self, wanted: Wanted) -> dict[str, Any]:
        """Return the fields of the request that ask for it."""
        return {}

    def input_messages(self, body: Json) -> list[Any]:
        raise NotImplementedError

    def answer(self) -> Answer:
        raise NotImplementedError

    def hide(self, part: dict[str, Any], asked: Wanted) -> bool:
        """Take out of an answer or event what we asked for and the caller did not; True where that changed it."""
        return False

    def is_ours_alone(self, part: Json, asked: Wanted) -> bool:
        """Whether a (cleaned) stream event was sent only to carry what we asked for: it says nothing at all."""
        return False


def blank(thing: dict[str, Any], name: str) -> bool:
    """Make a field null where it is not: servers that know our fields send them as null unless asked."""
    if thing.get(name) is None:
        return False
    thing[name] = None
    return True
