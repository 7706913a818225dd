"""A step in one line of the terminal: what was learnt, how healthy the update was, where tokens and time went."""

from lightning_trainer.metrics.row import StepMetrics

_SHOWN = (
    ("reward", "reward/mean", ".3f"),
    ("KL", "actor/ppo_kl", ".2g"),
    ("entropy", "entropy/sampled", ".3f"),
    ("clipped", "actor/pg_clipfrac", ".1%"),
    ("grad", "grad_norm", ".3g"),
    ("lr", "lr", ".2g"),
    ("stale", "staleness/mean", ".2g"),
    ("mismatch", "mismatch/abs_mean", ".2g"),
)
_STAGES = ("rollout", "build", "train", "publish")


def step_line(row: StepMetrics) -> str:
    """Return the line; what was not measured is left out."""
    values = row.values
    parts = [f"{label} {values[name]:{form}}" for label, name, form in _SHOWN if name in values]
    if "groups/total" in values:
        parts.append(f"groups {values.get('groups/kept', 0):.0f}/{values['groups/total']:.0f}")
    if "tokens/trained" in values:
        parts.append(
            f"tokens {values['tokens/trained']:,.0f} trained, {values['tokens/computed']:,.0f} unique, "
            f"{values['tokens/sequential']:,.0f} in all"
        )
    dropped = values.get("ledger/dropped", 0.0) + values.get("ledger/masked", 0.0)
    if dropped:
        parts.append(f"{dropped:,.0f} not trained")
    if times := [f"{stage} {values[f'seconds/{stage}']:.1f} s" for stage in _STAGES if f"seconds/{stage}" in values]:
        parts.append(", ".join(times))
    return f"step {row.step}: {' · '.join(parts)}"
