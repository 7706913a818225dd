"""Which policies share an engine: LoRA adapters of one model do, full weights have an engine of their own."""

from collections.abc import Sequence

from lightning_trainer.config import PolicyConfig


def engine_groups(policies: Sequence[PolicyConfig]) -> tuple[tuple[PolicyConfig, ...], ...]:
    """Return the policies by engine, in the order of the configuration."""
    groups: dict[str, list[PolicyConfig]] = {}
    for policy in policies:
        adapter = policy.lora is not None
        groups.setdefault(f"model {policy.model}" if adapter else f"policy {policy.name}", []).append(policy)
    return tuple(tuple(group) for group in groups.values())
