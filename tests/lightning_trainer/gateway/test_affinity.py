"""Over real HTTP: the calls of an attempt, a trace or a URL go to one engine, which alone is told whose they are."""

from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any

import pytest

from lightning_trainer.gateway.engine.upstream import Upstream
from lightning_trainer.gateway.policies import ServedPolicy
from lightning_trainer.serving.affinity import Affinity, AffinityCounts

_OWNER = "x-lightning-conversation"


class _Choice:
    """Chooses as ``EngineReplicas`` does, of engines that are always there."""

    def __init__(self, *engines: Any) -> None:
        self.engines = engines
        self.affinity: Affinity[Any] = Affinity()
        self.in_flight = dict.fromkeys(engines, 0)

    async def ready(self, timeout_s: float) -> None: ...

    def begin(self, avoid: Collection[Any], conversation: str | None = None) -> Any:
        left = [one for one in self.engines if one not in avoid]
        chosen = self.affinity.choose(left or self.engines, self.in_flight, conversation)
        self.in_flight[chosen] += 1
        return chosen

    def end(self, endpoint: Any) -> None:
        self.in_flight[endpoint] -= 1


class _Team:
    """A gateway before three engines."""

    def __init__(self, http: Any, engines: list[Any], choice: _Choice) -> None:
        self.http, self.engines, self.choice = http, engines, choice

    async def call(self, base: str = "/v1", headers: dict[str, str] | None = None, words: str = "Is it open?") -> int:
        """Return which engine answered."""
        before = [len(engine.requests) for engine in self.engines]
        body = {"model": "team", "messages": [{"role": "user", "content": words}]}
        answer = await self.http.post(f"{base}/chat/completions", json=body, headers=headers)
        assert answer.status_code == 200, answer.text
        (where,) = [i for i, engine in enumerate(self.engines) if len(engine.requests) > before[i]]
        return where

    def told(self) -> set[str | None]:
        return {seen.get(_OWNER) for engine in self.engines for seen in engine.headers_seen}


@pytest.fixture
async def team(open_gateway):
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(open_gateway()) for _ in range(3)]
        choice = _Choice(*(one.endpoint for one in opened))
        policy = ServedPolicy("team", Upstream(choice, queue_timeout_s=2.0))
        gateway = await stack.enter_async_context(open_gateway(more=[policy]))
        yield _Team(gateway.http, [one.engine for one in opened], choice)


def _trace(number: int, span: int) -> dict[str, str]:
    return {"traceparent": f"00-{number:032x}-{span:016x}-01"}


async def test_the_calls_of_a_rollouts_url_go_to_one_engine_and_rollouts_are_spread(team) -> None:
    used = {}
    for number in range(12):
        base = f"/rollouts/run-{number}/agents/solver/v1"
        used[number] = {await team.call(base) for _ in range(3)}
    assert all(len(engines) == 1 for engines in used.values())
    assert len(set.union(*used.values())) == 3
    assert len(team.told()) == 12
    assert team.choice.affinity.counts == AffinityCounts(stayed=24, moved=0)


async def test_an_attempt_goes_before_the_trace_and_a_trace_is_one_conversation(team) -> None:
    attempt = {"baggage": "lightning.rollout.id=r,lightning.attempt.id=a1"}
    assert len({await team.call(headers={**_trace(number + 1, 1), **attempt}) for number in range(6)}) == 1
    assert len(team.told()) == 1
    assert len({await team.call(headers=_trace(99, span + 1)) for span in range(6)}) == 1
    assert len(team.told()) == 2
    other = {"baggage": "lightning.rollout.id=r2,lightning.attempt.id=a1"}
    await team.call(headers=other)
    assert len(team.told()) == 3, "the rollout is part of it"


async def test_nobodys_calls_are_known_by_their_first_words_and_share_no_ids(team) -> None:
    for words in ("Is it open?", "And now?", "Why?", "When?"):
        assert len({await team.call(words=words) for _ in range(4)}) == 1
    assert team.told() == {None}
    assert team.choice.affinity.counts == AffinityCounts(stayed=12, moved=0)


async def test_a_conversation_whose_engine_is_gone_goes_on_at_another_and_stays_there(team) -> None:
    base = "/rollouts/run-1/v1"
    home = await team.call(base)
    url, team.choice.engines[home].base_url = team.choice.engines[home].base_url, "http://127.0.0.1:9"
    other = await team.call(base)
    assert other != home
    team.choice.engines[home].base_url = url
    assert await team.call(base) == other
