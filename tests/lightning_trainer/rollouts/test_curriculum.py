"""Which tasks a curriculum chooses."""

from collections import Counter
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from lightning_trainer.rollouts import Curriculum


@dataclass(frozen=True)
class Task:
    id: str
    kind: str


def candidates(each: int = 5) -> list[Task]:
    return [Task(f"{kind}-{number}", kind) for kind in ("always", "never", "sometimes") for number in range(each)]


def shown(outcomes: dict[str, list[float]]) -> Curriculum[Task]:
    curriculum = Curriculum[Task](lambda task: task.kind)
    for kind, rewards in outcomes.items():
        for reward in rewards:
            curriculum.saw(Task("seen", kind), reward)
    return curriculum


def test_what_is_always_or_never_solved_gives_way_to_what_is_uncertain():
    curriculum = shown({"always": [1.0] * 50, "never": [0.0] * 50, "sometimes": [0.0, 1.0] * 25})
    assert {task.kind for task in curriculum.choose(candidates(), 5)} == {"sometimes"}


def test_a_kind_that_was_not_tried_is_preferred_to_one_that_is_known_to_be_hopeless():
    curriculum = shown({"always": [1.0] * 200, "never": [0.0] * 200})
    assert {task.kind for task in curriculum.choose(candidates(), 4)} == {"sometimes"}


def test_what_was_seen_long_ago_is_forgotten():
    curriculum = shown({"never": [0.0] * 20, "sometimes": [0.0, 1.0] * 10})
    tasks = [task for task in candidates(20) if task.kind != "always"]
    early = Counter(task.kind for task in curriculum.choose(tasks, 10))
    for _ in range(30):
        curriculum.choose(tasks, 10)
    late = sum((Counter(task.kind for task in curriculum.choose(tasks, 10)) for _ in range(20)), Counter())
    assert early["never"] == 0
    assert late["never"] > 50  # of 200, where chance alone would have 100


@given(
    st.dictionaries(st.sampled_from(["always", "never", "sometimes"]), st.lists(st.floats(-2, 3))), st.integers(0, 15)
)
def test_as_many_different_tasks_are_chosen_as_are_asked_for_whatever_was_seen(outcomes, count):
    chosen = shown(outcomes).choose(candidates(), count)
    assert len({task.id for task in chosen}) == count


@given(st.sets(st.sampled_from([task.id for task in candidates()]), max_size=6))
def test_what_was_chosen_before_an_interruption_is_chosen_again(started):
    chosen = {task.id for task in shown({"never": [0.0] * 50}).choose(candidates(), 6, started=started)}
    assert started <= chosen


def test_what_is_never_solved_is_tried_rather_than_what_nearly_always_is():
    curriculum = shown({"always": [1.0] * 200, "never": [0.0] * 200})
    tasks = [task for task in candidates() if task.kind != "sometimes"]
    assert {task.kind for task in curriculum.choose(tasks, 5)} == {"never"}
