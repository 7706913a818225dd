"""Which shadows are whole: those whose live attempt has ended, however many others never will."""

import time
from dataclasses import replace

from lightning_instrumentation import semconv

from lightning_trainer.daemon.publication.shadow_rollouts import Shadows, settle
from lightning_trainer.gateway.shadow import shadow_id, shadow_trace
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.tables import canaries


async def test_shadows_whose_live_attempts_never_end_do_not_hide_the_newer_ones(
    tmp_path, attempt_spans, monkeypatch
) -> None:
    monkeypatch.setattr(canaries, "_NAMES", 2)
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        for name, ended in (("a1", False), ("a2", False), ("a3", False), ("a4", True)):
            root, call = attempt_spans(name, [1, 2], time.time_ns(), task=name)
            _, beside = attempt_spans(shadow_id(name, 1), [1, 2], time.time_ns(), task=name)
            attributes = {**beside.attributes, semconv.POLICY_VERSION: 1, semconv.ROLLOUT_MODE: "shadow"}
            trace_id, parent = shadow_trace(shadow_id(name, 1))
            beside = replace(beside, trace_id=trace_id, parent_span_id=parent, attributes=attributes)
            await store.append([call, beside, *([root] if ended else [])])
        shadows = Shadows()
        assert await settle(shadows, store, store, policy="math", version=1, since_ns=0) == [shadow_id("a4", 1)]
        assert shadows.whole == {shadow_id("a4", 1): "a4"}
        assert not shadows.incomplete


async def test_shadows_of_another_policy_and_of_an_earlier_candidate_are_not_counted_as_incomplete(
    tmp_path, attempt_spans
) -> None:
    async with SqliteStore(tmp_path / "lightning.sqlite") as store:
        for name, policy, number in (("a1", "math", 2), ("a2", "math", 1), ("a3", "other", 1), ("a4", "other", 2)):
            began = time.time_ns() - 3600 * 10**9
            root, call = attempt_spans(name, [1, 2], began, task=name)
            _, beside = attempt_spans(shadow_id(name, number), [1, 2], began, task=name)
            attributes = {**beside.attributes, semconv.POLICY: policy, semconv.POLICY_VERSION: number}
            attributes[semconv.ROLLOUT_MODE] = "shadow"
            trace_id, parent = shadow_trace(shadow_id(name, number))
            await store.append(
                [root, call, replace(beside, trace_id=trace_id, parent_span_id=parent, attributes=attributes)]
            )
        shadows = Shadows()
        assert await settle(shadows, store, store, policy="math", version=2, since_ns=0) == [shadow_id("a1", 2)]
        assert not shadows.incomplete
