"""Thresholds of verl's rollout correction, checked before verl would refuse them with a traceback.

Their syntax is verl's (``verl.trainer.ppo.rollout_corr_helper``): a number, or ``"lower_upper"``.
"""

REJECTIONS = frozenset(
    {"token_k1", "token_k2", "token_k3", "seq_max_k2", "seq_max_k3"}
    | {f"seq_{how}_{estimator}" for how in ("sum", "mean") for estimator in ("k1", "k2", "k3")}
)
"""The divergences between engine and trainer that can be bounded, of single tokens or of whole sequences."""


def weight_threshold(threshold: float | str) -> tuple[float | None, float]:
    """Return the lower bound of an importance weight, None if there is none, and the upper bound.

    Raises:
        ValueError: it is neither a positive number nor a pair ``"lower_upper"``.
    """
    return _bounds(threshold, "rollout_is_threshold")


def rejection_thresholds(rejections: str, thresholds: float | str | None) -> None:
    """Check ``rollout_rs`` and its threshold.

    Raises:
        ValueError: a name is unknown or repeated, a threshold is missing or invalid for its name, or there is neither a
            single threshold for all names nor one for each.
    """
    names = [name.strip() for name in rejections.split(",") if name.strip()]
    if not names or (unknown := sorted(set(names) - REJECTIONS)):
        wrong = ", ".join(unknown) if names else rejections
        raise ValueError(f"rollout_rs = {wrong!r} is unknown; there are {', '.join(sorted(REJECTIONS))}")
    if twice := sorted(name for name in set(names) if names.count(name) > 1):
        raise ValueError(f"rollout_rs = {rejections!r} names {', '.join(twice)} more than once")
    if thresholds is None:
        raise ValueError(f"rollout_rs = {rejections!r} needs rollout_rs_threshold, such as 2.0 for token_k1")
    given = [part.strip() for part in str(thresholds).split(",") if part.strip()]
    if len(given) not in (1, len(names)):
        raise ValueError(
            f"rollout_rs_threshold = {thresholds!r} holds {len(given)} thresholds for {len(names)} names in "
            "rollout_rs; give one for all or one each"
        )
    for name, threshold in zip(names, given * len(names) if len(given) == 1 else given, strict=True):
        lower, upper = _bounds(threshold, "rollout_rs_threshold")
        if lower is None and upper < 1 and name.endswith("k1"):
            raise ValueError(
                f'rollout_rs_threshold = {threshold!r}: {name} is kept from 1/t to t; give 1 or more, or "lower_upper"'
            )
        if lower is not None and not name.endswith("k1"):
            raise ValueError(
                f"rollout_rs_threshold = {threshold!r}: {name} is never negative and has an upper bound only"
            )


def _bounds(threshold: float | str, name: str) -> tuple[float | None, float]:
    try:
        parts = [float(part) for part in str(threshold).split("_")]
    except ValueError:
        parts = []
    if len(parts) not in (1, 2) or not all(part > 0 for part in parts) or parts != sorted(parts):
        raise ValueError(f'{name} = {threshold!r} is not a threshold; give a number above 0, or "lower_upper"')
    return (parts[0] if len(parts) == 2 else None), parts[-1]
