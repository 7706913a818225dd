"""Explains rollouts of one snapshot, each for the policy that it belongs to: for the command line and the dashboard."""

from lightning_instrumentation import semconv

from lightning_trainer.config import Config, PolicyConfig, any_agent
from lightning_trainer.explain.explanation import Explanation, explain
from lightning_trainer.explain.gathering import Gathering
from lightning_trainer.store.connection import Connection
from lightning_trainer.store.tables import attempts as attempt_table
from lightning_trainer.store.tables import rollouts as rollout_queries
from lightning_trainer.store.tables import spans as span_table


class Explainer:
    """Explains rollouts; a step's attempts are judged once, however many of its rollouts are explained."""

    def __init__(
        self, connection: Connection, config: Config, *, policy: PolicyConfig | None = None, from_files: bool = False
    ) -> None:
        """Prepare to explain rollouts as a configuration trains them.

        Args:
            connection: of a store, read-only, inside a transaction (``store.scan.read_only``).
            policy: one of the configuration's, for which every rollout is explained; None: each for its own policy.
            from_files: see ``Gathering``.
        """
        self._connection = connection
        self._config = config
        self._policy = policy
        self._from_files = from_files
        self._gatherings: dict[str, Gathering] = {}

    def explain(self, rollout_id: str) -> Explanation:
        """Explain a rollout.

        Raises:
            ConfigError: a step consumed an attempt, and the configuration does not have the step's policy.
        """
        policy = self.policy_of(rollout_id)
        if policy.name not in self._gatherings:
            self._gatherings[policy.name] = Gathering(
                self._connection,
                policy,
                [one.name for one in self._config.policy if one is not policy],
                from_files=self._from_files,
                no_policy=not self._config.policy,
                judges=self._config.judge,
            )
        return explain(self._gatherings[policy.name].cases(rollout_id))

    def policy_of(self, rollout_id: str) -> PolicyConfig:
        """Return the policy whose step took a rollout, else one that claims one of its agents, else the first."""
        policies = self._config.policy
        if self._policy is not None or len(policies) < 2:
            return self._policy or next(iter(policies), None) or any_agent()
        attempts = [one.attempt_id for one in attempt_table.select(self._connection, rollout_id=rollout_id)]
        for policy in policies:
            for attempt_id in attempts:
                taken = rollout_queries.select_assignment(self._connection, attempt_id, policy.name)
                if taken is not None and taken[0] == policy.name:
                    return policy
        spans = (
            span_table.select_of_attempts(self._connection, attempts)
            if attempts
            else rollout_queries.select_spans_without_attempt(self._connection, rollout_id)
        )
        agents = [name for span in spans if isinstance(name := span.attributes.get(semconv.AGENT_NAME), str)]
        claiming = (policy for agent in agents for policy in policies if policy.claims(agent))
        return next(claiming, policies[0])
