"""What a policy finds when it starts: nothing yet, what was recorded before, or the weights of another model.

Version 0 is the model itself. If the configuration names another model before any step has changed weights, the policy
starts over from it; afterwards the other model is refused, because checkpoints, versions and records descend from the
first one.
"""

import asyncio
from pathlib import Path

from lightning_trainer.config import PolicyConfig
from lightning_trainer.errors import ConfigError, TurnLostError
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import participations
from lightning_trainer.store.worklist import waiting
from lightning_trainer.training.checkpoint_folder import THE_WAY_ON, model_mark


async def begin(policy: PolicyConfig, model_dir: Path, store: Store) -> str | None:
    """Record the start of a policy; return what a person should hear of it.

    Raises:
        ConfigError: the policy was already trained from another model, or another daemon trains it from one.
    """
    name = policy.name
    recorded = await store.begin_policy(name)
    if not policy.train and not store.shared:  # in a shared store another daemon may train it
        await store.write(lambda connection: waiting.stay_out(connection, name))
    mark = await asyncio.to_thread(model_mark, model_dir)
    before = await store.scan(lambda connection: participations.started_from(connection, name))
    if before == mark:
        return None
    if before is None:
        await store.write(lambda connection: participations.start_from(connection, name, mark))
        return _what_of_recorded(policy, recorded) if recorded else None
    if not await store.scan(lambda connection: participations.is_untrained(connection, name)):
        raise ConfigError(
            f"policy.{name}.model = {policy.model!r}: its steps were trained from other weights than those of "
            f"{model_dir}; name the model that it began with, choose another [daemon] state_dir, or {THE_WAY_ON}"
        )
    try:
        await store.write_in_turn(name, lambda connection: participations.begin_anew(connection, name, mark))
    except TurnLostError as error:
        raise ConfigError(
            f"policy.{name}.model = {policy.model!r} is another model than the store's: {error}"
        ) from error
    return (
        f"policy {name!r} begins anew, from {policy.model}: what the earlier model answered stays readable and is not "
        "trained"
    )


def _what_of_recorded(policy: PolicyConfig, rollouts: int) -> str:
    """Return what a policy, started for the first time, does with the rollouts that were recorded before."""
    some = f"{rollouts:,} rollout{'s' * (rollouts != 1)} recorded before policy {policy.name!r} was first started"
    if policy.train_recorded:
        return f"{some}: those are trained too in which an engine of its [[policy.trusted]] answered (train_recorded)"
    return f"{some} stay readable and are not trained: training begins with what comes after"
