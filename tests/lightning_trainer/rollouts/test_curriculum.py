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
    return [Task(f"{kind}-{number}", kind) for number in range(each) for kind in ("always", "never", "sometimes")]


def shown(outcomes: dict[str, list[float]]) -> Curriculum[Task]:
    curriculum = Curriculum[Task](lambda task: task.kind)
    for kind, rewards in outcomes.items():
        for reward in rewards:
            curriculum.saw(Task("seen", kind), reward)
    return curriculum


def drawn(curriculum: Curriculum[Task], tasks: list[Task], outcomes: dict[str, list[float]]) -> Counter[str]:
    """The kinds of what was chosen by its worth in 20 steps, each after these outcomes: 200 tasks."""
    kinds = Counter[str]()
    for _ in range(20):
        for kind, rewards in outcomes.items():
            for reward in rewards:
                curriculum.saw(Task("seen", kind), reward)
        kinds += Counter(task.kind for task in curriculum.choose(tasks, 20)[10:])
    return kinds


def test_half_of_a_step_is_as_the_program_made_it():
    curriculum = shown({"always": [1.0] * 50, "never": [0.0] * 50, "sometimes": [0.0, 1.0] * 25})
    assert curriculum.choose(candidates(), 7)[:4] == candidates()[:4]


def test_what_is_always_or_never_solved_gives_way_to_what_is_uncertain_and_is_not_given_up():
    outcomes = {"always": [1.0] * 50, "never": [0.0] * 50, "sometimes": [0.0, 1.0] * 25}
    kinds = drawn(shown({}), candidates(40), outcomes)
    assert kinds["sometimes"] > 130
    assert kinds["never"] > kinds["always"]
    assert kinds["never"] > 10


def test_a_kind_that_was_not_tried_is_preferred_to_one_that_is_known_to_be_hopeless():
    kinds = drawn(shown({}), candidates(40), {"always": [1.0] * 200, "never": [0.0] * 200})
    assert kinds["sometimes"] > 100


def test_what_was_seen_long_ago_is_forgotten():
    tasks = [task for task in candidates(40) if task.kind != "always"]
    curriculum = shown({})
    early = drawn(curriculum, tasks, {"never": [0.0] * 50, "sometimes": [0.0, 1.0] * 25})
    for _ in range(30):
        curriculum.choose(tasks, 10)
    late = drawn(curriculum, tasks, {})
    assert early["never"] < 60
    assert late["never"] > 80  # chance alone would give 100


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
