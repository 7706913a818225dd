"""The search as a whole, with a daemon and a runner that are scripts: what is tried, what is kept, and what ends it."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from lightning_instrumentation.prompts.version import PromptVersion
from lightning_instrumentation.scope import current

from lightning_trainer.errors import LightningError, NotThereError
from lightning_trainer.rollouts import AttemptEnded, PromptOptimizer
from lightning_trainer.rollouts.daemon_client import Reached
from lightning_trainer.rollouts.prompts import evaluator, used_versions
from lightning_trainer.rollouts.prompts.candidates import CandidateTried
from lightning_trainer.rollouts.prompts.client import NoProposalError, PromptClient, Proposed, Spent
from lightning_trainer.rollouts.task_file import task_of

NOWHERE = "http://127.0.0.1:9"
TASKS = [{"id": str(number)} for number in range(12)]


class Script:
    """Attempts are made one after the other; ``earns(task, texts)`` says what each gets, or raises.

    Texts are their version's number, ``v0`` and so on, and a proposal is the next one.
    """

    def __init__(self, earns: Callable[[str, dict[str, str]], float | None], names: Sequence[str] = ("clerk",)) -> None:
        self.earns = earns
        self.made: list[tuple[str, str, dict[str, str]]] = []
        """Stage, task and given texts of each attempt."""
        self.asked_for: dict[str, set[str]] = {}
        """By attempt."""
        self.silent: set[str] = set()
        """Prompts that the attempt of the first task does not ask for."""
        self.reaches = True
        """Whether attempts run with the texts that they are given."""
        self.waited_s: list[float] = []
        """For what attempts have recorded."""
        self.asked_about: list[str] = []
        """The first attempt of each question which version attempts had."""
        self.proposals = 0
        self.most_proposals = 10_000
        self.spent = Spent(2, 900, 80)
        """On each proposal, made or not."""
        self.served = 0
        self.roots: dict[int, str] = {}
        """Of versions that derive from another default than the others."""
        self.events: list[Any] = []
        self.optimizer = PromptOptimizer(
            names, self._attempt, endpoint=NOWHERE, on_event=self.events.append, concurrency=1
        )
        self.optimizer._daemon = self  # pyright: ignore[reportAttributeAccessIssue]
        self.optimizer._evaluator._runner = self  # pyright: ignore[reportAttributeAccessIssue]
        self._names = names

    def search(self, tasks: Sequence[Any] = TASKS, **options: Any):
        return self.optimizer.optimize(tasks, **{"attempts": 100, **options})

    def _attempt(self, task: Any) -> float | None:
        given = {name: one.text for name, one in (current().prompts or {}).items()}
        stage, attempt_id = self._now
        first = not self.made
        self.made.append((stage, task.id, given))
        self.asked_for[attempt_id] = {name for name in self._names if not (first and name in self.silent)}
        return self.earns(task.id, {name: given.get(name, f"v{self.served}") for name in self._names})

    def evaluated(self, tasks: Sequence[Any], *, stage: str) -> list[AttemptEnded]:
        ended = []
        for task in map(task_of, tasks):
            self._now = stage, f"a{len(self.made)}"
            reward, error = None, None
            try:
                reward = self.optimizer._evaluator.attempt(task)
            except RuntimeError as raised:
                error = str(raised)
            ended.append(AttemptEnded(stage, None, task.id, reward, 0.0, error, self._now[1]))
            self.optimizer._evaluator.attempt_ended(ended[-1])
        return ended

    def first_with(self, text: str) -> str:
        return next(f"a{number}" for number, (*_, texts) in enumerate(self.made) if texts.get("clerk") == text)

    def used_in(self, name: str, attempts: str | Sequence[str], *, wait_s: float) -> PromptVersion:
        attempts = [attempts] if isinstance(attempts, str) else attempts
        self.waited_s.append(wait_s)
        self.asked_about.append(attempts[0])
        if not any(name in self.asked_for[one] for one in attempts):
            raise NotThereError(f"none asked for {name}")
        given = [self.made[int(one[1:])][2].get(name) for one in attempts]
        version = next((int(text[1:]) for text in given if text and self.reaches), self.served)
        return PromptVersion(version, f"v{version}")

    def propose(self, name: str, parent: int, attempts: Sequence[str], *, seed: int) -> Proposed:
        if self.proposals >= self.most_proposals:
            raise NoProposalError("the budget is spent", self.spent)
        self.proposals += 1
        return Proposed(PromptVersion(self.proposals, f"v{self.proposals}"), "reflect", self.spent)

    def root(self, name: str, version: int) -> str:
        return self.roots.get(version, "the default")

    def put_score(self, name: str, version: int, *, stage: str, mean: float, tasks: int) -> None:
        pass


def by_text(**earned: float) -> Callable[[str, dict[str, str]], float]:
    """What an attempt earns by the text of ``clerk``; 0.5 by any other."""
    return lambda task, texts: earned.get(texts["clerk"], 0.5)


def test_the_better_text_is_found_and_a_worse_one_is_not_tried_at_the_validation_tasks():
    script = Script(by_text(v1=0.25, v2=1.0))
    found = script.search(held_out=[{"id": "h1"}, {"id": "h2"}])
    assert (found.best.name, found.best.mean, found.base.mean) == ("clerk@v2", 1.0, 0.5)
    assert found.held_out == ({"h1": 0.5, "h2": 0.5}, {"h1": 1.0, "h2": 1.0})
    assert {stage for stage, _, texts in script.made if texts.get("clerk") == "v1"} == {"feedback"}
    assert found.attempts == len(script.made) - 4


def test_all_attempts_after_the_first_get_the_version_that_it_got():
    """Another version may be served meanwhile, and a program that waits for a busy daemon gets none."""
    script = Script(by_text())
    script.served = 7
    script.search(attempts=20)
    validation = [texts for stage, _, texts in script.made if stage == "validation"]
    assert validation[:1] == [{}]
    assert validation[1:6] == [{"clerk": "v7"}] * 5


def test_a_prompt_of_a_team_that_only_some_attempts_ask_for_is_found_in_those():
    script = Script(lambda task, texts: 0.5, ("planner", "writer"))
    script.silent = {"writer"}
    found = script.search(attempts=30)
    assert found.base.name == "planner@v0, writer@v0"


def test_a_prompt_that_no_attempt_asks_for_ends_the_search_in_a_sentence():
    script = Script(lambda task, texts: 0.5)
    script._names = ()
    with pytest.raises(LightningError, match="none asked for clerk"):
        script.search()


def test_what_attempts_record_is_waited_for_once_and_not_again_for_each_prompt_of_a_team(monkeypatch):
    script = Script(lambda task, texts: 0.5, ("planner", "writer"))
    script._names = ()
    now = iter(range(1000))
    monkeypatch.setattr(used_versions.time, "monotonic", lambda: float(next(now)))
    with pytest.raises(NotThereError, match="none asked for planner"):
        script.search()
    assert script.waited_s == [1.0, 0.0, 9.0], "two seconds of the first attempt, ten of all"


def test_attempts_without_a_reward_say_why_before_anything_is_waited_for():
    def earns(task: str, texts: dict[str, str]) -> float:
        raise RuntimeError("OPENAI_API_KEY is not set")

    script = Script(earns)
    script._names = ()
    with pytest.raises(LightningError, match=r"none of 6 attempts got a reward, .*OPENAI_API_KEY is not set"):
        script.search()
    assert len(script.waited_s) == 1


def test_a_search_whose_texts_do_not_reach_the_program_says_so_once(caplog):
    Script(by_text(v2=1.0)).search()
    assert "say nothing about it" not in caplog.text
    cached = Script(by_text())
    asked_for, made = {}, cached._attempt

    def attempt(task: Any) -> float | None:
        reward = made(task)
        asked_for.update({one: set() for one in list(cached.asked_for)[6:]})
        cached.asked_for.update(asked_for)
        return reward

    cached.optimizer._evaluator._attempt = attempt
    cached.search()
    assert (
        caplog.text.count("none of the 3 attempts with clerk@v1 asked for 'clerk', so they say nothing about it") == 1
    )
    caplog.clear()
    service = Script(by_text())
    service.reaches = False
    service.search()
    assert caplog.text.count("attempts with clerk@v1 ran with v0, and say nothing about it") == 1


def test_attempts_that_failed_do_not_say_that_a_text_does_not_reach_the_program(caplog, tmp_path):
    """They may have failed before they asked for it; those with the next text are looked at."""
    script = Script(by_text(v2=1.0))

    def attempt(task: Any) -> float | None:
        reward = made(task)
        if (script.made[-1][2].get("clerk")) == "v1":
            script.asked_for[script._now[1]] = set()
            raise RuntimeError("the endpoint is busy")
        return reward

    made, script.optimizer._evaluator._attempt = script._attempt, attempt
    script.search(journal=tmp_path / "j")
    assert "say nothing about it" not in caplog.text
    assert script.asked_about == ["a0", script.first_with("v2")]
    assert (tmp_path / "j").read_text().count('"reached"') == 1


def test_a_search_whose_budget_is_spent_says_what_it_has_found():
    script = Script(by_text(v1=0.8))
    script.most_proposals = 1
    found = script.search(held_out=[{"id": "h"}])
    assert (found.best.name, found.held_out) == ("clerk@v1", ({"h": 0.5}, {"h": 0.8}))


def test_a_search_that_never_gets_a_text_says_why():
    script = Script(by_text())
    script.most_proposals = 0
    with pytest.raises(LightningError, match="the budget is spent"):
        script.search()


def test_what_the_writing_model_was_asked_is_told_with_what_was_asked_in_vain():
    script = Script(by_text(v1=0.8))
    script.most_proposals = 2
    found = script.search()
    assert script.proposals == 2
    assert found.spent == Spent(2 * 7, 900 * 7, 80 * 7), "two proposals, and five that were refused"
    assert script.optimizer.spent == found.spent


def test_the_daemon_says_which_default_a_version_derives_from(monkeypatch):
    client = PromptClient(Reached(NOWHERE, None, None))
    asked: list[Any] = []

    def once(*request: Any) -> tuple[int, bytes]:
        asked.append(request)
        return 200, json.dumps({"versions": [{"version": 3, "root": "ab"}]}).encode()

    monkeypatch.setattr(client, "_once", once)
    assert client.root("clerk", 3) == "ab"
    assert any("/lightning/prompts/clerk?before=4&limit=1" in str(word) for word in asked[0])


def test_the_daemon_says_what_a_proposal_cost(monkeypatch):
    client = PromptClient(Reached(NOWHERE, None, None))
    spent = {"calls": 3, "input_tokens": 70, "output_tokens": 9}
    answers = iter(
        [
            (200, {"version": 1, "text": "v1", "made_by": "reflect", "spent": spent}),
            (422, {"error": {"message": "big was asked 3 times", "spent": spent}}),
            (200, {"version": 1, "text": "v1", "made_by": "reflect"}),
            (422, {"error": {"message": "no attempt can be read"}}),
        ]
    )

    def once(*request: Any) -> tuple[int, bytes]:
        status, document = next(answers)
        return status, json.dumps(document).encode()

    monkeypatch.setattr(client, "_once", once)
    for cost in (Spent(3, 70, 9), Spent()):  # of a daemon of an earlier version nothing is known
        assert client.propose("clerk", 0, ["a"], seed=0) == Proposed(PromptVersion(1, "v1"), "reflect", cost)
        with pytest.raises(NoProposalError, match="the daemon answered 422") as refused:
            client.propose("clerk", 0, ["a"], seed=0)
        assert refused.value.spent == cost


def test_a_failed_attempt_never_counts_more_than_the_worst_that_did_not_fail():
    def earns(task: str, texts: dict[str, str]) -> float:
        if texts["clerk"] == "v0":
            return -0.5
        raise RuntimeError("crashed")

    found = Script(earns).search()
    assert found.best is found.base, "0 would be more than what the program earned"


def test_a_failed_attempt_is_made_again_by_the_runner_and_is_no_part_of_the_journal(monkeypatch, tmp_path):
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(evaluator, "Runner", lambda *given, **options: made.append(options))
    PromptOptimizer("clerk", lambda task: 1.0, endpoint=NOWHERE, retries=2)
    assert made[0]["retries"] == 2
    monkeypatch.undo()

    script = Script(by_text(v1=1.0))
    once = script.evaluated

    def evaluated(tasks: Sequence[Any], *, stage: str) -> list[AttemptEnded]:
        failed = AttemptEnded("retried", None, task_of(tasks[0]).id, None, 0.0, "429", "busy")
        script.optimizer._evaluator.attempt_ended(failed)
        return once(tasks, stage=stage)

    script.evaluated = evaluated
    found = script.search(journal=tmp_path / "j")
    assert found.attempts == len(script.made)
    assert any(getattr(event, "stage", "") == "retried" for event in script.events)
    assert "429" not in (tmp_path / "j").read_text()


def test_how_many_attempts_failed_is_said_with_what_was_earned():
    def earns(task: str, texts: dict[str, str]) -> float | None:
        if texts["clerk"] == "v1":
            return 1.0 if task != "x" else None
        if int(task) % 3 == 0:
            raise RuntimeError("the model's endpoint is busy")
        return 0.5

    script = Script(earns)
    script.search(validation=[{"id": str(number)} for number in range(6)], attempts=30)
    base, child = [event for event in script.events if isinstance(event, CandidateTried)][:2]
    assert (base.candidate, base.tasks, base.failed) == ("clerk@v0", 6, 2)
    assert (child.candidate, child.failed, child.made_by) == ("clerk@v1", 0, "reflect")


def test_a_kept_text_that_is_proposed_again_is_not_tried_again():
    def earns(task: str, texts: dict[str, str]) -> float:
        return 0.9 if texts["clerk"] == "v1" and task != "0" else 0.5 if task != "0" or texts["clerk"] == "v0" else 0.0

    script = Script(earns)
    script.propose = lambda name, parent, attempts, seed: Proposed(PromptVersion(1, "v1"), "examples", Spent())
    found = script.search([{"id": str(number)} for number in range(1, 7)], validation=TASKS[:2])
    assert [one.name for one in found.candidates] == ["clerk@v0", "clerk@v1"]


@pytest.mark.parametrize("options", [{}, {"validation": [{"id": "5", "question": "?"}]}])
def test_a_held_out_task_that_texts_are_chosen_by_is_refused_before_anything_is_tried(options):
    script = Script(by_text())
    tasks = TASKS if not options else [{"id": "a"}, {"id": "b"}]
    held_out = [*(options.get("validation") or TASKS[5:6])]
    with pytest.raises(LightningError, match="held-out task '5' is one that texts are made from or chosen by"):
        script.search(tasks, held_out=held_out, **options)
    assert script.made == []


def test_a_held_out_task_that_is_no_json_is_known_again():
    class Image:
        pass

    tasks, again = ([{"id": str(number), 1: Image(), "x": 0} for number in range(9)] for _ in range(2))
    with pytest.raises(LightningError, match="held-out task '5' is one that texts are made from"):
        Script(by_text()).search(tasks, held_out=again[5:6])


def test_ids_that_two_files_count_alike_are_other_tasks():
    script = Script(by_text(v1=0.8))
    found = script.search(held_out=[{"id": "5", "question": "another"}])
    assert found.held_out == ({"5": 0.5}, {"5": 0.8})


def test_held_out_tasks_have_ids_of_their_own():
    with pytest.raises(LightningError, match="2 tasks are called 'h'"):
        Script(by_text()).search(held_out=[{"id": "h", "n": 1}, {"id": "h", "n": 2}])


def test_rows_that_cannot_be_compared_can_be_drawn():
    numpy = pytest.importorskip("numpy")
    rows = [{"image": numpy.zeros(3), "id": str(number)} for number in range(7)]
    assert Script(by_text(v1=0.8)).search(rows, minibatch=3).best.name == "clerk@v1"


@pytest.mark.parametrize("name", ["my prompt", "", "ä", " writer"])
def test_what_is_no_name_of_a_prompt_is_refused_before_anything_is_tried(name):
    with pytest.raises(LightningError, match="cannot name a prompt"):
        PromptOptimizer(["clerk", name], lambda task: 1.0, endpoint=NOWHERE)
