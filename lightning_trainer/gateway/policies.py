"""The policies that the gateway serves, and the choice among them for a call.

A policy's name as the model (``POLICY``, ``POLICY@vN``) decides. With any other model name, the policy that claims the
caller's agent is chosen.
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
    """A policy and the engine that answers its calls."""

    name: str
    """What callers pass as the model."""
    upstream: Upstream
    claims: Callable[[str | None], bool] = _nobody
    """Whether the policy claims an agent."""
    served_name: str = ""
    """The engine's name for it; ``name`` if empty."""
    old_versions: OldVersions | None = None
    """Where ``POLICY@vN`` is served if it is no longer live; None: nowhere."""
    canary: CanaryRoute | None = None
    """Which rollouts a candidate, served by ``old_versions``, answers; None if there never is one."""
    shadow: Shadow | None = None
    """Makes a candidate answer in addition to the live version; None: never."""
    sees: bool | None = None
    """Whether its model reads images; None: unknown, and the engine decides."""
    media_size_each: float | None = None
    """Size in bytes of the largest image that is kept; None: no limit."""

    def models(self, live: int | None) -> list[str]:
        """Return the model names that callers may use; ``live``: the version that is served now."""
        kept = () if self.old_versions is None else self.old_versions.versions()
        versions = sorted({*kept, *(() if live is None else (live,))}, reverse=True)
        return [self.name, *(f"{self.name}@v{version}" for version in versions)]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The policy and version that a call asks for."""

    policy: ServedPolicy
    version: int | None
    """The version that the caller requires; None: the live one."""


class ServedPolicies:
    """All served policies, in the order of the configuration."""

    def __init__(self, policies: Sequence[ServedPolicy]) -> None:
        self._policies = tuple(policies)

    def __iter__(self) -> Iterator[ServedPolicy]:
        return iter(self._policies)

    @property
    def names(self) -> list[str]:
        """Return the names of the policies, in the order of the configuration."""
        return [policy.name for policy in self._policies]

    def choose(self, model: object, agent: str | None) -> Chosen:
        """Return the policy of a call.

        Raises:
            RefusalError: the call names no model (400), or an unknown one and no policy claims its agent (404).
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
        """Close the connections to all engines."""
        for policy in self._policies:
            if policy.shadow is not None:
                await policy.shadow.close()
            await policy.upstream.close()
