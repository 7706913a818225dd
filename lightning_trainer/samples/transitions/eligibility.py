"""Which calls can be transitions of a policy, and for every other call the first reason why not.

Identity is checked before what was recorded: if a call is not ours, nothing else about it matters.

The client asks engines that its user trusts (``LIGHTNING_TRUSTED_HOSTS``) for token ids and log-probabilities. These
are exact, but only the user knows whose weights sampled them, and says so in ``[[policy.trusted]]``: the number of a
version, or ``"unknown"``. Then the calls are samples of that policy, as far off it as its weights have moved since. If
the version is unknown, nothing bounds how far that is: then the ratio between trainer and engine becomes a truncated
weight (``rollout_is``; Ionides, Truncated Importance Sampling, 2008), and how old the call is does not matter.
"""

import math
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from lightning_trainer.config import PolicyConfig
from lightning_trainer.config.policies.trusted import TrustedEngine
from lightning_trainer.samples.transitions.ledger import NO_AGENT
from lightning_trainer.samples.transitions.reasons import Reason
from lightning_trainer.types import Attempt, AttemptState, Call, Fidelity, RolloutMode

AGAINST_MODE: Mapping[RolloutMode | str, Reason] = {
    RolloutMode.EVALUATE: Reason.EVALUATION,
    RolloutMode.BASELINE: Reason.BASELINE,
    RolloutMode.RECORD: Reason.RECORDED,
    RolloutMode.RETRIED: Reason.RETRIED,
    RolloutMode.SHADOW: Reason.SHADOW,
    RolloutMode.DROPPED: Reason.TAKEN_OUT,
}
"""By the mode of an attempt: why its calls are not trained."""


@dataclass(frozen=True, slots=True)
class KeptImages:
    """What the prompts of a model that sees may show."""

    placeholder: int | None
    """The token that stands for a piece of an image; None if the model is not known."""
    kept: Collection[str]
    """Addresses (``Media.uri``) whose bytes are in the store."""


def reason_against(
    call: Call,
    policy: PolicyConfig,
    attempts: Mapping[str, Attempt],
    versions: Container[int] | None = None,
    claims: Callable[[str | None], bool] | None = None,
    vocabulary: int | None = None,
    images: KeptImages | None = None,
) -> Reason | None:
    """Return why the call cannot be trained, or None when it can.

    An interrupted stream is refused although its tokens are real: the agent acted on the part that it read, and how
    much that was is not known.

    Args:
        call: any.
        policy: the one to train.
        attempts: by id.
        versions: of the policy; a call that none of these sampled is stale. None: any.
        claims: ``policy.claims``, or a function that caches its answers if there are many calls of few agents.
        vocabulary: number of entries in the policy's; None if it is not known.
        images: which images are kept, for a model that sees; None: not checked.
    """
    reason = _not_ours(call, policy, attempts, versions, claims or policy.claims) or _not_recorded(call, policy)
    if reason is None and vocabulary is not None and not _in_vocabulary(call, vocabulary):
        return Reason.NOT_IN_VOCABULARY
    return reason if reason is not None or images is None else _against_images(call, images)


def _against_images(call: Call, images: KeptImages) -> Reason | None:
    """Return what is wrong with the images of a call, for a model that sees."""
    # The model takes every placeholder for a piece of an image; these stand for none.
    place = images.placeholder
    if place is not None and (place in call.response_ids or (not call.media and place in call.prompt_ids)):
        return Reason.PLACEHOLDER
    return None if all(one.uri in images.kept for one in call.media) else Reason.MEDIA_MISSING


def _in_vocabulary(call: Call, vocabulary: int) -> bool:
    ids = (call.prompt_ids, call.response_ids)
    return min(map(min, ids)) >= 0 and max(map(max, ids)) < vocabulary


def took_part(
    call: Call, attempts: Mapping[str, Attempt], policy: PolicyConfig, claims: Callable[[str | None], bool]
) -> bool:
    """Whether a call that cannot be trained happened among those that can be, so that reward flows across it.

    It did if an agent of the policy made it in an attempt that is trained.
    """
    if call.agent is None or call.attempt_id is None or not claims(call.agent):
        return False
    attempt = attempts.get(call.attempt_id)
    return (
        attempt is not None
        and attempt.mode is RolloutMode.TRAIN
        and attempt.state is not AttemptState.RUNNING
        and not (attempt.state is AttemptState.FAILED and policy.failed_attempts == "drop")
    )


def with_names(calls: Sequence[Call], policy: PolicyConfig) -> Sequence[Call]:
    """Return the calls; those without an agent's name get a common one if the policy claims them (``agents = ["*"]``).

    They then count as one agent, since agents without names cannot be told apart.
    """
    if not policy.claims(None) or all(call.agent is not None for call in calls):
        return calls
    return [replace(call, agent=NO_AGENT) if call.agent is None else call for call in calls]


def _not_ours(
    call: Call,
    policy: PolicyConfig,
    attempts: Mapping[str, Attempt],
    versions: Container[int] | None,
    claims: Callable[[str | None], bool],
) -> Reason | None:
    if call.agent is None and not claims(None):
        return Reason.NO_AGENT
    if call.policy is not None and call.policy != policy.name:
        return Reason.OTHER_POLICY
    if not claims(call.agent):
        return Reason.NOT_SELECTED
    if call.fidelity is Fidelity.TEXT_ONLY:
        # A policy answered, so the call did go to the gateway: there are no ids because its caller cancelled it first.
        cancelled = call.policy is not None and not call.complete
        return Reason.INCOMPLETE_STREAM if cancelled else Reason.FIDELITY_TOO_LOW
    if call.fidelity is Fidelity.VERIFIED and not policy.allow_retokenized:
        return Reason.RETOKENIZED
    if call.policy is None or (call.policy_version is None and not policy.takes_unknown_versions):
        return Reason.NO_POLICY_VERSION
    if call.attempt_id is None:
        return Reason.NO_ATTEMPT
    attempt = attempts.get(call.attempt_id)
    if attempt is None:
        return Reason.UNKNOWN_ATTEMPT
    if call.rollout_id is not None and call.rollout_id != attempt.rollout_id:
        return Reason.OTHER_ROLLOUT
    if attempt.mode in AGAINST_MODE:
        return AGAINST_MODE[attempt.mode]
    if attempt.state is AttemptState.FAILED and policy.failed_attempts == "drop":
        return Reason.FAILED_ATTEMPT
    if attempt.state is AttemptState.RUNNING:
        return Reason.ATTEMPT_RUNNING
    version = call.policy_version
    if version is None:
        return None
    # No version is below 0: a span that says so is wrong, whatever may be trained.
    return Reason.STALE if version < 0 or (versions is not None and version not in versions) else None


def _not_recorded(call: Call, policy: PolicyConfig) -> Reason | None:
    prompt, sampled = len(call.prompt_ids), len(call.response_ids)
    if not prompt and not sampled:
        return Reason.NO_TOKEN_IDS
    if not prompt:
        return Reason.EMPTY_PROMPT
    if not sampled:
        return Reason.EMPTY_RESPONSE if call.complete else Reason.INCOMPLETE_STREAM
    if call.behavior_logprobs is None:
        return Reason.NO_LOGPROBS
    if len(call.behavior_logprobs) != sampled:
        return Reason.LOGPROB_COUNT
    # A sum is finite only if all of its terms are, and is quicker to check.
    if not math.isfinite(sum(call.behavior_logprobs)) and not all(map(math.isfinite, call.behavior_logprobs)):
        return Reason.LOGPROB_NOT_FINITE
    if not call.complete:
        return Reason.INCOMPLETE_STREAM
    if policy.algorithm.mask_truncated and call.truncated:
        return Reason.TRUNCATED
    # What is imitated needs no ratio of probabilities.
    if call.sampling_unknown is not None and policy.algorithm.objective == "rl":
        return Reason.SAMPLING_UNKNOWN
    return Reason.NON_TEXT if call.media and policy.non_text == "drop" else None


def with_trusted(calls: Sequence[Call], policy: PolicyConfig) -> Sequence[Call]:
    """Return the calls; those of the policy's agents that a trusted engine answered become calls of the policy."""
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
    """Return why it is unknown what a call's tokens were drawn from, as in ``Call.sampling_unknown``; None if known."""
    if call.sampling_unknown is not None or engine.logprobs == "processed":
        return call.sampling_unknown
    if call.shaping is None and math.isclose(call.temperature, 1.0):
        return None
    what = f"temperature = {call.temperature:g}" if call.shaping is None else "the request's penalties or bias"
    return (
        f"the engine's log-probabilities are those before {what}; start it with --logprobs-mode processed_logprobs "
        'and say logprobs = "processed" in [[policy.trusted]]'
    )
