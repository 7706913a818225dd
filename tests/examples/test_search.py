"""examples/search: every question can be answered by searching, and what is held out is nowhere in training."""

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "search"


@pytest.fixture(scope="module")
def example() -> Iterator[dict[str, ModuleType]]:
    """The example's modules, by the bare names that they import each other by."""
    found = {}
    for name in ("corpus", "tasks", "agent", "search_training", "train"):
        specification = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
        assert specification is not None
        assert specification.loader is not None
        sys.modules[name] = found[name] = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(found[name])
    yield found
    for name in found:
        del sys.modules[name]


def test_the_best_passage_is_the_one_with_the_rare_words(example) -> None:
    corpus = example["corpus"]
    assert len(corpus.passages()) > 200
    for person in corpus.people():
        assert corpus.search(person.name) == [person.passage]
        assert corpus.search(f"Where is {person.town}?")[0].startswith(f"{person.town} is a town in {person.country}")
    assert corpus.search("xylophone") == corpus.search("") == []
    assert len(corpus.search("town", 3)) == 3


def test_rare_words_many_of_them_and_short_passages_count_more(example, monkeypatch) -> None:
    corpus = example["corpus"]
    monkeypatch.setattr(
        corpus, "passages", lambda: {"": "red red fox", "b": "red dog", "c": "a dog in a house of wood"}
    )
    corpus._index.cache_clear()
    # "fox" is in one of three passages and counts more than "dog", which is in two; of those the shorter one is better.
    assert corpus.search("fox dog", 3) == ["red red fox", "red dog", "a dog in a house of wood"]
    assert corpus.search("dog", 3) == ["red dog", "a dog in a house of wood"]
    assert corpus.search("red", 3) == ["red red fox", "red dog"]
    corpus._index.cache_clear()


class Searcher:
    """Stands in for the model: searches for whom it is asked about, then for the town, then answers what it must."""

    def __init__(self, task, person) -> None:
        self.task = task
        self.queries = [person.name, person.town]
        self.told: list[str] = []

    def __call__(self, messages, temperature: float) -> str:
        self.told.append(messages[-1]["content"])
        if len(self.told) <= 2:
            return f"search: {self.queries[len(self.told) - 1]}"
        return f"answer: {self.task.answer.upper()}."


def test_who_searches_twice_finds_the_answer(example, monkeypatch) -> None:
    agent, tasks, corpus = (example[name] for name in ("agent", "tasks", "corpus"))
    asked = [*tasks.heldout_tasks(30), *tasks.train_tasks(1, 30)]
    assert {task.asked for task in asked} == {"country", "river"}
    for task in asked:
        person = next(one for one in corpus.people() if one.name in task.question)
        searcher = Searcher(task, person)
        monkeypatch.setattr(agent, "_say", searcher)
        assert tasks.score(agent.solve(task.question), task) == 1.0
        found = [task.answer in text for text in searcher.told]
        assert found == [False, False, True]  # the last passage says it, and none before


def test_an_agent_that_neither_searches_nor_answers_has_no_answer(example, monkeypatch) -> None:
    agent = example["agent"]
    monkeypatch.setattr(agent, "_say", lambda messages, temperature: "I do not know.")
    assert agent.solve("Who?") == ""
    monkeypatch.setattr(agent, "_say", lambda messages, temperature: "search: nothing of the kind")
    assert agent.solve("Who?") == ""


def test_held_out_questions_share_no_name_and_no_wording_with_training(example) -> None:
    tasks, corpus = example["tasks"], example["corpus"]
    train = [task for step in range(60) for task in tasks.train_tasks(step, 8)]
    held_out = tasks.heldout_tasks(72)
    assert tasks.heldout_tasks(72) == held_out
    assert {task.answer for task in train}.isdisjoint(task.answer for task in held_out)
    assert {one.name for one in corpus.people() if one.held_out}.isdisjoint(
        one.name for one in corpus.people() if not one.held_out
    )
    assert len({task.question for task in held_out}) > 50
    names = re.compile("|".join(re.escape(one.name) for one in corpus.people()))
    wordings = [{names.sub("NAME", task.question) for task in some} for some in (train, held_out)]
    assert wordings[0].isdisjoint(wordings[1])
    assert [len(some) for some in wordings] == [24, 8]


def test_the_answer_is_compared_to_the_letter_but_for_case_and_dots(example) -> None:
    score = example["tasks"].score
    task = SimpleNamespace(answer="Kelonia")
    assert [score(said, task) for said in ("kelonia.", "The Kelonia", "Kelonia or Baravia", "")] == [1.0, 1.0, 0.0, 0.0]


def test_what_is_shown_is_in_the_form_that_the_corpus_has(example) -> None:
    names = {
        word
        for passage in example["corpus"].passages().values()
        for word in passage.strip(".").split()
        if word.istitle()
    }
    for question, first, *more, last in example["agent"].EXAMPLES:
        assert first.startswith("search: ")
        assert last.removeprefix("answer: ") in more[-1]
        assert not names & set(question.strip("?").split()[1:])


def test_an_attempt_that_read_the_answer_and_did_not_give_it_gets_a_part(example, monkeypatch) -> None:
    tasks, corpus, train = (example[name] for name in ("tasks", "corpus", "train"))
    for task in tasks.train_tasks(1, 8):
        person = next(one for one in corpus.people() if one.name in task.question)
        queries = [f"search: {person.name}", f"search: {person.town}"]
        for said, reward in (
            ([*queries, f"answer: {task.answer}"], 1.0),
            ([*queries, "answer: Nowhere"], train.FOUND),
            ([*queries, "I do not know"], train.FOUND),
            ([queries[0], f"answer: {person.town}"], 0.0),
            (["answer: Nowhere"], 0.0),
        ):
            script = iter(said)
            monkeypatch.setattr(train, "ask", lambda messages, temperature, script=script: (next(script), "id"))
            assert train.sample(task) == reward
