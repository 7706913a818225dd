"""What an answer that is no success says of the daemon: its own sentence, a wrong token, or another service."""

import json


def refusal(url: str, status: int, body: bytes) -> str:
    """Return one sentence."""
    sentence = _sentence(body)
    if status in (401, 403) and sentence is not None:
        return f"the daemon refuses the token: set LIGHTNING_TOKEN to [daemon] token of its configuration ({url})"
    if sentence is None:
        return not_a_daemon(url, f"it answered {status}")
    return f"the daemon answered {status}: {sentence} ({url})"


def not_a_daemon(url: str, why: str) -> str:
    """Return one sentence for an answer that none of ours gives."""
    return f"what answers at {url} is not a lightning-trainer daemon ({why}): check --endpoint or LIGHTNING_ENDPOINT"


def _sentence(body: bytes) -> str | None:
    """What the daemon says; None where this is not the daemon's way to say it."""
    try:
        sentence = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return None
    return sentence if isinstance(sentence, str) else None
