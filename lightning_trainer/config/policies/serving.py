"""``engine`` of a policy: what differs from ``[engine]`` where policies train models of several families."""

from pathlib import Path

from pydantic import Field

from lightning_trainer.config.sections import Section


class OwnEngineConfig(Section):
    """What only a model's family and its agents decide; absent: what ``[engine]`` says."""

    max_model_len: int | None = Field(default=None, ge=16)
    chat_template: Path | None = None
    tool_call_parser: str | None = None
