"""The policies that the gateway serves, and which of them a call is for.

A model that is the name of a policy (``POLICY``, ``POLICY@vN``) says it. Any other name is no word of ours: then the
caller's agent says it, where a policy claims that agent.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lightning_trainer.gateway.canary_route import CanaryRoute, OldVersions
from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.errors import RefusalError
from lightning_trainer.gateway.request import no_policy, unknown_model
from lightning_trainer.gateway.shadow import Shadow


def _unclaimed(agent: str | None) -> str:
    if agent is None:
        return "the call names no agent, so no policy claims it: name one of these models, or the agent"
    return f"no policy claims the agent {agent!r}: name one of these models, or add it to a policy's `agents`"


def _nobody(_: str | None) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class ServedPolicy:
    """One policy and where it is answered."""

    name: str
    """What callers give as their model."""
    upstream: Upstream
    claims: Callable[[str | None], bool] = _nobody
    """Whether an agent is the policy's."""
    served_name: str = ""
    """The engine's own name for it; ``name`` when empty."""
    old_versions: OldVersions | None = None
    """Where ``POLICY@vN`` is answered that is not served any more; None: nowhere."""
    canary: CanaryRoute | None = None
    """Which rollouts a candidate answers, by ``old_versions``; None: none ever."""
    shadow: Shadow | None = None
    """Has a candidate answer beside the live version; None: it never does."""
    sees: bool | None = None
    """Whether its model takes images; None: not known, and the engine says."""
    media_size_each: float | None = None
    """Bytes of the largest image that is kept; None: any."""

    def models(self, live: int | None) -> list[str]:
        """Return the names that it can be called by; ``live``: the version that is served now."""
        kept = () if self.old_versions is None else self.old_versions.versions()
        versions = sorted({*kept, *(() if live is None else (live,))}, reverse=True)
        return [self.name, *(f"{self.name}@v{version}" for version in versions)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What a call is for."""

    policy: ServedPolicy
    version: int | None
    """The one that the caller insists on."""


class ServedPolicies:
    """All of them, in the order of the configuration."""

    def __init__(self, policies: Sequence[ServedPolicy]) -> None:
        self._policies = tuple(policies)

    def __iter__(self) -> Iterator[ServedPolicy]:
        return iter(self._policies)

    @property
    def names(self) -> list[str]:
        return [policy.name for policy in self._policies]

    def choose(self, model: object, agent: str | None) -> Chosen:
        """Return the policy of a call.

        Raises:
            RefusalError: it names no model (400), or none that there is, and no policy claims its agent (404).
        """
        if not self._policies:
            raise no_policy()
        if not isinstance(model, str):
            named = " or ".join(map(repr, self.names))
            raise RefusalError(400, f"model is {model!r}; name {named}", param="model", code="missing_model")
        for policy in self._policies:
            if model == policy.name:
                return Chosen(policy, None)
            if model.startswith(f"{policy.name}@"):
                digits = model.removeprefix(f"{policy.name}@v")
                if digits != model and digits.isascii() and digits.isdigit() and len(digits) <= 18:
                    return Chosen(policy, int(digits))
                raise unknown_model(model, self.names)
        for policy in self._policies:
            if policy.claims(agent):
                return Chosen(policy, None)
        raise unknown_model(model, self.names, _unclaimed(agent))

    async def close(self) -> None:
        for policy in self._policies:
            if policy.shadow is not None:
                await policy.shadow.close()
            await policy.upstream.close()
