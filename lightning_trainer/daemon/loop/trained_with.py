"""The settings that a step's weights depend on, recorded with the step: repeated with others, it gives other weights.

Those of ``[training]`` are not among them: most change no weight beyond its rounding. Nor is ``model``, which
``first_start.begin`` recognizes by its weights, wherever its folder is.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import SettingsChangedError
from lightning_trainer.models.resolve import found_model, model_cache
from lightning_trainer.store.records import StepRecord
from lightning_trainer.training.checkpoint_folder import model_mark
from lightning_trainer.types import TrainingBatch

_OF_THE_BATCH = {
    "preset",
    "advantage",
    "drop_zero_variance_groups",
    "dynamic_sampling",
    "max_sampling_rounds",
    "keep_most_uncertain",
    "deviation_floor",
    "deviation_decay",
    "overlong",
    "mask_truncated",
    "reference_model",
}
"""The algorithm's settings that are left out: those whose effect the recorded batch already contains, the advantage,
which a credit scheme may replace, and the reference model, which is known by its weights."""
_OBJECTIVE = "algorithm.objective"
_MEANING = (_OBJECTIVE, "algorithm.advantage", "credit.scheme")
"""What a batch is made for: if one of these changes, credits are not rewards, or attempts nothing to imitate."""


_STAGE = "stage.first_step"
"""The step that a reference's weights, a critic's warm-up and the order of demonstrations count from."""


def trained_with(policy: PolicyConfig, step: int) -> dict[str, str]:
    """Return by dotted name, as text, the settings of a policy that an update in this step depends on."""
    first_step, _ = policy.stage_at(step) or (1, None)
    policy = policy.at_step(step)
    with_critic = policy.credit.needs_values  # of other schemes the batch contains all that matters
    found: dict[str, Any] = {
        "weights of reference_model": _mark(policy.algorithm.reference_model),
        "max_sample_tokens": policy.max_sample_tokens,
        "lora": policy.lora.model_dump() if policy.lora is not None else {"rank": 0},
        "credit": policy.credit.model_dump() if with_critic else {"scheme": "without a critic"},
        "algorithm": policy.algorithm.model_dump(exclude=_OF_THE_BATCH) | {"advantage": policy.estimator},
        "optimizer": policy.optimizer.model_dump(),
        _STAGE: first_step,
    }
    return dict(_flat("", found))


def made_for(policy: PolicyConfig, step: int) -> dict[str, str]:
    """Return those settings of ``trained_with`` that tell what the numbers in the batch of a step mean."""
    found = trained_with(policy, step)
    return {name: found[name] for name in _MEANING}


@cache
def _mark(model: str | None) -> str | None:
    """Return a mark that tells a model's weights from others; its name if they are not on this machine."""
    folder = None if model is None else found_model(model, model_cache())
    return model if folder is None else model_mark(folder)


def _flat(prefix: str, section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", str(value)


def changed_since(policy: PolicyConfig, steps: Iterable[StepRecord]) -> str | None:
    """Return which setting of a policy has changed since a step was trained, of the first of these steps that differs;
    None if none has, as far as settings were recorded."""
    for record in steps:
        then: Mapping[str, str] = {} if record.report is None else record.report.settings
        if (difference := _difference(then, trained_with(policy, record.step))) is not None:
            return f"step {record.step} was trained with {difference}"
    return None


def require_same_stage(policy: PolicyConfig, newest: StepRecord) -> None:
    """Refuse to go on from a step in another stage than the one that it belonged to.

    The objective reveals that a first or only stage was removed: the stage in its place begins with step 1, too.

    Raises:
        SettingsChangedError: the stages before the step's own, or the objective of its own, have changed.
    """
    now = trained_with(policy, newest.step)
    then = now if newest.report is None else {**now, **newest.report.settings}
    if then[_STAGE] != now[_STAGE]:
        raise SettingsChangedError(
            f"step {newest.step} was trained in the stage that began with step {then[_STAGE]}, and now its stage "
            f"begins with step {now[_STAGE]}: put each [[policy.stage]] that is over back, with its steps; its data "
            "may be gone"
        )
    if then[_OBJECTIVE] != now[_OBJECTIVE]:
        raise SettingsChangedError(
            f"step {newest.step} was trained with {_OBJECTIVE} = {then[_OBJECTIVE]}, and now its stage has "
            f"{now[_OBJECTIVE]}: put its [[policy.stage]] back, with its steps, and add one of the other objective "
            "behind it; its data may be gone"
        )


def require_made_for(policy: PolicyConfig, batch: TrainingBatch) -> None:
    """Refuse a recorded batch whose numbers mean something else to the policy as it is configured now.

    Raises:
        SettingsChangedError: it was made for another algorithm.
    """
    if (difference := _difference(batch.made_for, made_for(policy, batch.step))) is not None:
        raise SettingsChangedError(
            f"step {batch.step} is recorded and not trained, and its batch was made for {difference}: set it back, or "
            f"take the step out (`lightning-trainer drop {policy.name}@{batch.step}`)"
        )


def _difference(then: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    names = (name for name in sorted(then.keys() & now.keys()) if then[name] != now[name])
    return next((f"{name} = {then[name]}, and now it is {now[name]}" for name in names), None)
