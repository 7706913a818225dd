"""Calls that an engine answered which is not the daemon's own: a policy's, where its configuration says so.

The client asks engines that its user trusts (``LIGHTNING_TRUSTED_HOSTS``) for token ids and log-probabilities. These
are exact, and nobody but the user knows whose weights sampled them. ``[[policy.trusted]]`` says it: the number of a
version, or ``"unknown"``. Then the calls are samples of that policy, as far off it as its weights have moved since.
Nothing bounds how far that is where the version is unknown: there the ratio between trainer and engine becomes a
truncated weight (``rollout_is``; Ionides, Truncated Importance Sampling, 2008), and nothing else is asked of it.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.trusted import TrustedEngine
from lightning_trainer.types import Call, Fidelity


def with_trusted(calls: Sequence[Call], policy: PolicyConfig) -> Sequence[Call]:
    """Return the calls, those of the policy's agents that an engine which it trusts answered as calls of the policy."""
    return [_claimed(call, policy) for call in calls] if policy.trusted else calls


def _claimed(call: Call, policy: PolicyConfig) -> Call:
    if call.policy is not None or call.fidelity is not Fidelity.EXACT or not policy.claims(call.agent):
        return call
    engine = next((one for one in policy.trusted if _answered(one, call)), None)
    if engine is None:
        return call
    version = None if engine.version == "unknown" else engine.version
    return replace(call, policy=policy.name, policy_version=version, sampling_unknown=_sampling_unknown(engine, call))


def _answered(engine: TrustedEngine, call: Call) -> bool:
    return call.server is not None and call.model is not None and engine.serves(call.server, call.model)


def _sampling_unknown(engine: TrustedEngine, call: Call) -> str | None:
    """Why it cannot be said what the call's tokens were drawn from, as ``Call.sampling_unknown`` does."""
    if call.sampling_unknown is not None or engine.logprobs == "processed":
        return call.sampling_unknown
    if call.shaping is None and math.isclose(call.temperature, 1.0):
        return None
    what = f"temperature = {call.temperature:g}" if call.shaping is None else "the request's penalties or bias"
    return (
        f"the engine's log-probabilities are those before {what}; start it with --logprobs-mode processed_logprobs "
        'and say logprobs = "processed" in [[policy.trusted]]'
    )
