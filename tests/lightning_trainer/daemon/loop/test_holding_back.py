"""The training loop takes no attempt whose spans have not all come, until waiting is in vain; then it says so."""

from dataclasses import replace
from pathlib import Path

from lightning_instrumentation import semconv

from lightning_trainer.store import SqliteStore
from lightning_trainer.types import Span


def span(attempt: str, number: int, *, root: bool = False) -> Span:
    attributes = {
        semconv.ATTEMPT_ID: attempt,
        semconv.ROLLOUT_ID: f"r-{attempt}",
        semconv.GROUP_ID: "g",
        semconv.SEQUENCE: f"n-{attempt}",
        semconv.SEQUENCE_NUMBER: number,
        semconv.SEQUENCE_STARTED: 2,
        **({semconv.ROLLOUT_ROOT: True} if root else {}),
    }
    return Span(attempt * 32, f"{number:016x}", None, "s", 1, 2, attributes)


async def test_a_step_waits_for_the_spans_of_its_attempts(tmp_path: Path, make_policy, collecting_loop) -> None:
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        await store.append([span("a", 1, root=True), span("b", 1, root=True), span("b", 2)])
        running = collecting_loop(store, make_policy(group_size=2, groups_per_step=1))
        assert (await running.steps.collect()).next_step(1) is None
        assert running._progress.held_attempts == {"a": 1}
        await store.append([span("a", 2)])
        attempts = (await running.steps.collect()).next_step(1)
        assert attempts is not None
        assert {attempt.attempt_id for attempt in attempts} == {"a", "b"}
        assert (running._progress.held_attempts, running._progress.problems) == ({}, [])


async def test_without_patience_it_goes_on_and_names_the_attempt(tmp_path: Path, make_policy, collecting_loop) -> None:
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        await store.append([span("a", 1, root=True), span("b", 1, root=True), span("b", 2)])
        running = collecting_loop(store, make_policy(group_size=2, groups_per_step=1, span_timeout_s=0))
        assert (await running.steps.collect()).next_step(1) is not None
        (problem,) = running._progress.problems
        assert "attempt a: 1 of its spans did not arrive" in problem


async def test_a_step_waits_for_the_baseline_of_its_group_and_takes_it_too(
    tmp_path: Path, make_policy, collecting_loop
) -> None:
    async with SqliteStore(tmp_path / "s.sqlite") as store:
        trained = [span(name, number, root=number == 1) for name in "ab" for number in (1, 2)]
        greedy = [span("c", number, root=number == 1) for number in (1, 2)]
        await store.append(trained)
        whenever = 1e10  # the spans' clock begins in 1970
        remax = make_policy(group_size=2, groups_per_step=1, group_timeout_s=whenever, algorithm={"advantage": "remax"})
        running = collecting_loop(store, remax)
        assert (await running.steps.collect()).next_step(1) is None
        await store.append([replace(s, attributes={**s.attributes, semconv.ROLLOUT_MODE: "baseline"}) for s in greedy])
        attempts = (await running.steps.collect()).next_step(1)
        assert attempts is not None
        assert {attempt.attempt_id for attempt in attempts} == {"a", "b", "c"}
        grpo = (await collecting_loop(store, make_policy(group_size=2, groups_per_step=1)).steps.collect()).next_step(1)
        assert grpo is not None
        assert {attempt.attempt_id for attempt in grpo} == {"a", "b"}, "nobody else consumes a baseline"
