"""A rollout that is known by its URL alone: ``/rollouts/{id}/v1`` and ``/rollouts/{id}/agents/{agent}/v1``.

Whoever can set a base URL takes part, in any language. The id names the rollout and its one attempt. The ids of the
attempt's root span follow from it, so calls can be put below that span before it exists.
"""

import hashlib
import json
import re
from dataclasses import dataclass

DEFAULT_AGENT = "default"
"""Who is speaking where the URL names no agent; a policy that shall train it lists it."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}")


@dataclass(frozen=True, slots=True)
class RolloutUrl:
    """What a URL says. Raises ValueError for a name that is too long or has other characters than letters, digits
    and ``. _ : ~ -``."""

    rollout_id: str
    agent: str = DEFAULT_AGENT

    def __post_init__(self) -> None:
        for what, name in (("rollout id", self.rollout_id), ("agent name", self.agent)):
            if not _NAME.fullmatch(name):
                shown = name if len(name) <= 128 else f"{name[:64]}..."
                raise ValueError(
                    f"{what} {shown!r} in the URL: use 1 to 128 letters, digits and . _ : ~ - and begin with a letter "
                    "or digit"
                )


def root_span_ids(rollout_id: str, attempt_id: str) -> tuple[str, str]:
    """Return trace id and span id, in hex, of the root span of an attempt whose caller keeps no spans of its own."""
    digits = hashlib.blake2b(
        json.dumps([rollout_id, attempt_id]).encode(), digest_size=24, person=b"rollout"
    ).hexdigest()
    return digits[:32], digits[32:]
