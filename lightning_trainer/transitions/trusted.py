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
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import urlsplit

from lightning_instrumentation.gateway.hosts import canonical_host
from pydantic import Field, field_validator

from lightning_trainer.section import Section
from lightning_trainer.types import Call, Fidelity

if TYPE_CHECKING:
    from lightning_trainer.config import PolicyConfig


class TrustedEngine(Section):
    """``[[policy.trusted]]``: an engine beside the daemon's own whose answers the policy learns from."""

    host: str
    """``host`` (any port), ``host:port`` or a URL, as in ``LIGHTNING_TRUSTED_HOSTS``."""
    model: str = Field(min_length=1)
    """The name that it serves the policy's weights by; what it answers by another name is not the policy's."""
    version: Annotated[int, Field(ge=0, strict=True)] | Literal["unknown"]
    """Of the policy, whose weights it serves; 0 is what the policy starts from."""
    logprobs: Literal["raw", "processed"] = "raw"
    """``raw``, vLLM's default: of the model's own distribution, so only calls at temperature 1 without penalties or a
    bias can be trained. ``processed``: of what the tokens were drawn from (``--logprobs-mode processed_logprobs``)."""

    @field_validator("host")
    @classmethod
    def _readable(cls, host: str) -> str:
        try:
            named, _ = _place(host)
        except ValueError as error:
            raise ValueError(f"it cannot be read ({error}); write host:port") from error
        if not named:
            raise ValueError("it names no host; write host:port")
        return host

    def answered(self, call: Call) -> bool:
        """Whether the engine answered the call."""
        return call.server is not None and call.model is not None and self.serves(call.server, call.model)

    def serves(self, server: str, model: str) -> bool:
        """Whether it is at ``server``, as ``Call.server`` names it, and serves the policy's weights by that name."""
        host, port = _place(self.host)
        seen_host, seen_port = _place(server)
        return model == self.model and host == seen_host and port in (None, seen_port)

    def unknown_of(self, call: Call) -> str | None:
        """Why it cannot be said what the call's tokens were drawn from, as ``Call.sampling_unknown`` does."""
        if call.sampling_unknown is not None or self.logprobs == "processed":
            return call.sampling_unknown
        if call.shaping is None and math.isclose(call.temperature, 1.0):
            return None
        what = f"temperature = {call.temperature:g}" if call.shaping is None else "the request's penalties or bias"
        return (
            f"the engine's log-probabilities are those before {what}; start it with --logprobs-mode processed_logprobs "
            'and say logprobs = "processed" in [[policy.trusted]]'
        )


def with_trusted(calls: Sequence[Call], policy: "PolicyConfig") -> Sequence[Call]:
    """Return the calls, those of the policy's agents that an engine which it trusts answered as calls of the policy."""
    return [_claimed(call, policy) for call in calls] if policy.trusted else calls


def _claimed(call: Call, policy: "PolicyConfig") -> Call:
    if call.policy is not None or call.fidelity is not Fidelity.EXACT or not policy.claims(call.agent):
        return call
    engine = next((one for one in policy.trusted if one.answered(call)), None)
    if engine is None:
        return call
    version = None if engine.version == "unknown" else engine.version
    return replace(call, policy=policy.name, policy_version=version, sampling_unknown=engine.unknown_of(call))


def _place(host: str) -> tuple[str, int | None]:
    parts = urlsplit(host if "//" in host else f"//{host}")
    return canonical_host(parts.hostname or "") if parts.hostname else "", parts.port
