"""Which ended attempts a policy's steps are made of, where several share a store or one trains what it finds there.

A rollout may be the work of agents of several policies, and each of them consumes it once, for its own tokens. A group
is a policy's when the policy answered a call in any of its attempts: then all of them count, since an attempt that
broke off before its turn is part of the comparison too. Other groups are none of its business.
"""

from collections.abc import Sequence, Set
from functools import partial

from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.calls import server_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.store.sqlite import SqliteStore
from lightning_trainer.store.tables import participations
from lightning_trainer.transitions.trusted import with_trusted
from lightning_trainer.types import Attempt, Span


def concerned(attempts: Sequence[Attempt], took_part: Set[str]) -> tuple[Attempt, ...]:
    """Return the attempts of the groups that the policy took part in, in the same order.

    Args:
        took_part: ids of attempts that the policy answered calls of.
    """
    groups = {attempt.group_id for attempt in attempts if attempt.attempt_id in took_part}
    return tuple(attempt for attempt in attempts if attempt.group_id in groups)


class TrustedCalls:
    """Notes which attempts have calls that an engine answered which the policy trusts; the gateway's come noted.

    It begins with all that is stored, whenever the daemon starts: the configuration may have changed since.
    """

    def __init__(self, policy: PolicyConfig, store: SqliteStore) -> None:
        self._policy = policy
        self._store = store
        self._seen = 0

    async def note(self) -> None:
        """Look at what was stored since the last time."""
        if self._policy.trusted:
            find = partial(participations.find, takes_part=self._takes_part, after=self._seen)
            found, self._seen = await self._store.scan(find)
            await self._store.take_part(self._policy.name, found)

    def _takes_part(self, span: Span) -> bool:
        server, model = server_of(span)
        if server is None or model is None or not any(one.serves(server, model) for one in self._policy.trusted):
            return False
        return any(call.policy == self._policy.name for call in with_trusted(read_spans([span]).calls, self._policy))
