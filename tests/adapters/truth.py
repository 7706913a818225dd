"""What a test knows of a call beyond its span: who made it and for which rollout, as the prompt itself says."""

import json
import re
from typing import Any

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids


def said_in(text: str) -> tuple[str | None, str | None]:
    """Agent and rollout that a request names."""
    agent, rollout = re.search(r"AGENT\[(\w+)\]", text), re.search(r"rollout (\d+)\b", text)
    return agent and agent[1], rollout and f"r{rollout[1]}"


def check_every_call(recording: Any, *, calls: int) -> None:
    """Every request that the model server saw has one span, with its agent, its rollout and its exact tokens."""
    made = sorted(str(said_in(json.dumps(body["messages"]))) for _, _, body in recording.model.requests)
    chats = recording.spans("chat")
    assert len(made) == calls
    assert len(chats) == calls
    captured = []
    for span in chats:
        truth = said_in(span.attributes[semconv.INPUT_MESSAGES])
        assert span.attributes.get(semconv.AGENT_NAME) == truth[0], span.attributes
        assert span.attributes.get(semconv.ROLLOUT_ID) == truth[1], span.attributes
        assert unpack_token_ids(span.attributes[semconv.response_token_ids(0)])
        captured.append(str(truth))
    assert sorted(captured) == made
    roots = {span.attributes[semconv.ROLLOUT_ID]: span.trace_id for span in recording.spans("rollout")}
    for span in [*chats, *recording.spans("execute_tool")]:
        assert span.trace_id == roots[span.attributes[semconv.ROLLOUT_ID]]
