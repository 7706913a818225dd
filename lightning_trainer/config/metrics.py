"""``[metrics]``: where a step's numbers go besides the store, and when a number becomes a warning."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from lightning_trainer.config.sections import SHORTEST_TOKEN, Section, TokenSection, sendable


class WandbConfig(Section):
    """``metrics.wandb``: Weights & Biases. Its key is not set here (use ``wandb login`` or WANDB_API_KEY)."""

    project: str = Field(min_length=1)
    entity: str | None = None
    run: str | None = None
    """Display name of the run; absent: the names of the policy and of the state folder."""
    mode: Literal["online", "offline"] = "online"
    """``offline`` writes below ``state_dir``/metrics, for ``wandb sync`` later."""


class OtlpConfig(Section):
    """``metrics.otlp``: a collector. Headers that it requires, such as a key, go into OTEL_EXPORTER_OTLP_HEADERS."""

    endpoint: str = Field(pattern=r"^https?://")
    """Where metrics are posted, with the path: ``http://127.0.0.1:4318/v1/metrics``."""
    every_s: float = Field(default=60.0, ge=1)


class WarningsConfig(Section):
    """``metrics.warnings``: the bounds. Each warning says what it compares; docs/operations.md says what to do."""

    steps: int = Field(default=3, ge=1)
    """How many consecutive steps must show a problem that one step alone may show by chance."""
    start_steps: int = Field(default=5, ge=1)
    """Number of first steps whose median (for entropy, whose highest value) later steps are compared with."""
    entropy_share: float = Field(default=0.1, gt=0, lt=1)
    """Entropy below this share of the start's is collapse."""
    mismatch_factor: float = Field(default=2.0, gt=1)
    """Mean |trainer - engine| of a logprob above this multiple of the start's is growth ..."""
    mismatch_floor: float = Field(default=0.05, gt=0)
    """... and above this, nats a token."""
    mismatch_limit: float = Field(default=0.5, gt=0)
    """Mean |trainer - engine| of a logprob above this, nats a token, means different weights."""
    kl: float = Field(default=0.1, gt=0)
    """Mean KL of the trainer's weights from those that sampled, nats a token."""
    reference_kl: float = Field(default=0.5, gt=0)
    """Mean KL from the reference model, if there is one, nats a token."""
    unknown_sampling_share: float = Field(default=0.05, gt=0, le=1)
    """Share of the sampled tokens that are dropped because the distribution they were drawn from is unknown."""
    reward_share: float = Field(default=0.25, gt=0)
    """The reward has fallen when it has lost this share of its gain ..."""
    reward_steps: int = Field(default=5, ge=2)
    """... in means over this many steps, by more than their scatter explains."""


class MetricsConfig(TokenSection):
    """``[metrics]``. ``state_dir``/metrics/POLICY.jsonl is always written."""

    tensorboard: bool | None = None
    """Event files in ``state_dir``/metrics/tensorboard/POLICY; absent: if tensorboard is installed."""
    wandb: WandbConfig | None = None
    otlp: OtlpConfig | None = None
    """Sends what ``GET /metrics`` returns over OTLP as well."""
    token: Annotated[str, AfterValidator(sendable)] | None = Field(default=None, min_length=SHORTEST_TOKEN)
    """Lets a scraper read ``GET /metrics`` and nothing else; the daemon's token opens everything, this route too."""
    beside: tuple[Path, ...] = Field(default=(), max_length=8)
    """State folders of other runs, whose curves the dashboard draws next to this one's; relative to this file."""
    warnings: WarningsConfig = WarningsConfig()
