"""A plan as the part of ``lightning.toml`` that it is."""

from lightning_trainer.plan.fitting import Plan

HEAD = "HEAD-NODE:6379"
"""What a cluster's address is before it is known."""


def fragment(plan: Plan, model: str) -> str:
    """Return TOML that the configuration accepts as it stands; the policy's agents are still to be named."""
    lines = ["[engine]", f"max_model_len = {plan.max_model_len}"]
    if plan.tensor_parallel > 1:
        lines.append(f"tensor_parallel_size = {plan.tensor_parallel}")
    if plan.replicas > 1:
        lines.append(f"replicas = {plan.replicas}")
    lines += ["", "[training]", 'device = "cuda"', f"max_tokens_per_micro_batch = {plan.tokens}"]
    if plan.trainers > 1:
        lines.append(f"world_size = {plan.trainers}")
    if plan.checkpointing:
        lines.append("gradient_checkpointing = true")
    if plan.on_cluster:
        lines += ["", "[ray]", f'address = "{HEAD}"']
    lines += ["", "[[policy]]", 'name = "agent"', 'agents = ["*"]', f'model = "{_escaped(model)}"']
    if plan.lora_rank is not None:
        lines.append(f"lora = {{ rank = {plan.lora_rank} }}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """A basic string of TOML 1.0, section "String"."""
    plain = text.replace("\\", "\\\\").replace('"', '\\"')
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in plain)
