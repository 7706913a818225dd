"""Policy versions pass through allowed states only, and one of them is live at most."""

from dataclasses import replace

import pytest

from lightning_trainer.errors import StoreError
from lightning_trainer.store import Store
from lightning_trainer.types import PolicyVersion, VersionState

_T, _L, _X, _R = VersionState.TRAINED, VersionState.LIVE, VersionState.REFUSED, VersionState.RETIRED


def _version(number: int, state: VersionState, **fields) -> PolicyVersion:
    return PolicyVersion("p", number, number, state, 1_000 + number, **fields)


async def test_a_version_comes_back_as_it_went_in(store: Store) -> None:
    version = _version(3, _L, checksum="ab", probe_max_abs=1e-5, probe_mean_abs=1e-6, publish_s=0.4)
    await store.put_version(version)
    assert await store.versions("p") == [version]
    assert await store.live_version("p") == version
    assert await store.live_version("q") is None


async def test_a_version_that_becomes_live_retires_the_one_that_was(store: Store) -> None:
    for version in (_version(0, _L), _version(1, _T), _version(1, _L), _version(2, _T), _version(2, _X, reason="no")):
        await store.put_version(version)
    assert [version.state for version in await store.versions("p")] == [_R, _L, _X]
    live = await store.live_version("p")
    assert live is not None
    assert live.version == 1


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ([_T, _T], True),
        ([_T, _L, _L], True),
        ([_T, _L, _R, _L], True),
        ([_T, _X, _X], True),
        ([_T, _L, _X], True),
        ([_T, _R], False),
        ([_T, _X, _L], True),
        ([_T, _X, _R], False),
    ],
)
async def test_only_allowed_ways_lead_from_state_to_state(store: Store, path, allowed: bool) -> None:
    for state in path[:-1]:
        await store.put_version(_version(1, state))
    if allowed:
        await store.put_version(_version(1, path[-1]))
        return
    with pytest.raises(StoreError, match=f"p@v1 is {path[-2]}; it cannot become {path[-1]}"):
        await store.put_version(_version(1, path[-1]))


async def test_publishing_again_after_a_restart_does_not_undo_what_was_proven(store: Store) -> None:
    live = _version(1, _L, checksum="ab", probe_max_abs=1e-5)
    await store.put_version(live)
    await store.put_version(replace(live, state=_T, probe_max_abs=None))
    assert await store.versions("p") == [live]
