"""Which ended attempts a policy's steps are made of, where several share a store or one trains what it finds there.

A rollout may be the work of agents of several policies, and each of them consumes it once, for its own tokens. A group
is a policy's when the policy answered a call in any of its attempts: then all of them count, since an attempt that
broke off before its turn is part of the comparison too. Other groups are none of its business.
"""

import json
from collections.abc import Sequence, Set
from functools import partial

from lightning_trainer.config import PolicyConfig
from lightning_trainer.ingest.calls import server_of
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.samples.transitions.trusted import with_trusted
from lightning_trainer.store.store import Store
from lightning_trainer.store.tables import cursors, participations
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

    How far it has come is stored; with other trusted engines in the configuration it begins anew with all there is.
    """

    def __init__(self, policy: PolicyConfig, store: Store) -> None:
        self._policy = policy
        self._store = store
        self._cursor = f"trusted/{policy.name}"
        self._settings = json.dumps([one.model_dump(mode="json") for one in policy.trusted], sort_keys=True)
        self._seen: int | None = None

    async def note(self) -> None:
        """Look at what was stored since the last time."""
        if not self._policy.trusted:
            return
        if self._seen is None:
            position = partial(cursors.position, name=self._cursor, about=self._settings)
            self._seen = await self._store.scan(lambda connection: position(connection))
        while True:
            before = self._seen
            find = partial(participations.find, takes_part=self._takes_part, after=before)
            found, self._seen = await self._store.scan(find)
            if self._seen == before:
                return
            await self._store.take_part(self._policy.name, found)
            move = partial(cursors.move, name=self._cursor, position=self._seen, about=self._settings)
            await self._store.write(lambda connection, move=move: move(connection))

    def _takes_part(self, span: Span) -> bool:
        server, model = server_of(span)
        if server is None or model is None or not any(one.serves(server, model) for one in self._policy.trusted):
            return False
        return any(call.policy == self._policy.name for call in with_trusted(read_spans([span]).calls, self._policy))
