"""A search that was interrupted goes on from its journal: nothing of it is made twice, but one attempt that shows which
text the program has now."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from lightning_trainer.errors import LightningError
from lightning_trainer.rollouts import AttemptEnded
from lightning_trainer.rollouts.daemon_client import Reached
from lightning_trainer.rollouts.prompts.client import PromptClient
from lightning_trainer.rollouts.prompts.journal import Journal
from tests.lightning_trainer.rollouts.prompts.test_search import Script  # pyright: ignore[reportMissingImports]

HELD_OUT = [{"id": "h1"}, {"id": "h2"}]


def earns(task: str, texts: dict[str, str]) -> float:
    """The more the later the text, but each fails at some tasks, so that the frontier has several."""
    version, number = int(texts["clerk"][1:]), sum(map(ord, task))
    if (number + version) % 7 == 0:
        raise RuntimeError("crashed")
    return ((number * 31 + version * 17) % 10) / 10


def interrupted(script: Script, after: int) -> None:
    made = script.earns

    def stops(task: str, texts: dict[str, str]) -> float | None:
        if len(script.made) > after:
            raise KeyboardInterrupt
        return made(task, texts)

    script.earns = stops


def found(script: Script, journal: Path | None, **options):
    one = script.search(held_out=HELD_OUT, journal=journal, **options)
    return one.best.name, [(each.name, dict(each.validation)) for each in one.candidates], one.attempts, one.held_out


def test_a_search_that_goes_on_tells_what_the_writing_model_was_asked_in_all(tmp_path):
    whole = Script(earns).search(attempts=80)
    first = Script(earns)
    first.search(journal=tmp_path / "j.jsonl", attempts=40)
    second = Script(earns)
    second.proposals, second.made, second.asked_for = first.proposals, list(first.made), first.asked_for
    assert second.search(journal=tmp_path / "j.jsonl", attempts=80).spent == whole.spent
    refused = Script(lambda task, texts: 0.5)
    refused.most_proposals = 0
    for times in (5, 10):
        with pytest.raises(LightningError, match="the budget is spent"):
            refused.search(journal=tmp_path / "refused.jsonl", attempts=40)
        assert refused.optimizer.spent.calls == 2 * times, "what was asked in vain is asked again"


@pytest.mark.parametrize("after", [1, 5, 9, 14, 40, 80])
def test_a_search_goes_on_where_it_was_interrupted_and_finds_what_it_would_have(tmp_path, after):
    whole = Script(earns)
    wanted = found(whole, None)
    first = Script(earns)
    interrupted(first, after)
    with pytest.raises(KeyboardInterrupt):
        first.search(held_out=HELD_OUT, journal=tmp_path / "j.jsonl")
    second = Script(earns)
    second.proposals = first.proposals
    second.made = [("", "", {})] * after  # so that its attempts have ids of their own
    second.asked_for = first.asked_for
    assert found(second, tmp_path / "j.jsonl") == wanted
    assert len(second.made) == len(whole.made) + 1, "what had ended was not made again"
    assert [event.stage for event in second.events if isinstance(event, AttemptEnded)].count("validation") == [
        event.stage for event in whole.events if isinstance(event, AttemptEnded)
    ].count("validation"), "the attempt more counts for nothing"


def test_a_search_that_has_ended_goes_on_with_more_attempts(tmp_path):
    first = Script(earns)
    *_, made, _ = found(first, tmp_path / "j.jsonl", attempts=40)
    second = Script(earns)
    second.proposals, second.made, second.asked_for = first.proposals, list(first.made), first.asked_for
    wanted = found(Script(earns), None, attempts=80)
    assert found(second, tmp_path / "j.jsonl", attempts=80)[1:3] == wanted[1:3]
    assert made <= 40 < wanted[2]


def test_a_search_goes_on_where_ids_are_something_else_than_texts(tmp_path):
    tasks = [SimpleNamespace(id=UUID(int=number)) for number in range(8)]
    wanted = Script(lambda task, texts: 0.5).search(tasks, attempts=40)
    first = Script(lambda task, texts: 0.5)
    found = first.search(tasks, attempts=40, journal=tmp_path / "j.jsonl")
    second = Script(lambda task, texts: 0.5)
    second.asked_for = first.asked_for
    assert second.search(tasks, attempts=40, journal=tmp_path / "j.jsonl").candidates == found.candidates
    assert len(second.made) == 1
    assert found.attempts == wanted.attempts


def gone_on(first: Script) -> Script:
    """Another process, at the same daemon."""
    second = Script(earns)
    second.proposals, second.made, second.asked_for = first.proposals, list(first.made), first.asked_for
    return second


@pytest.mark.parametrize("changed", ["validation", "feedback", "held_out"])
def test_tasks_whose_content_is_another_now_are_tried_anew(tmp_path, changed):
    given = {
        "feedback": [{"id": f"f{number}", "q": "old"} for number in range(4)],
        "validation": [{"id": f"v{number}", "q": "old"} for number in range(4)],
        "held_out": [{"id": f"h{number}", "q": "old"} for number in range(2)],
    }

    def search(script: Script) -> None:
        others = {name: given[name] for name in ("validation", "held_out")}
        script.search(given["feedback"], **others, attempts=30, journal=tmp_path / "j.jsonl")

    first = Script(earns)
    search(first)
    given[changed] = [{**one, "q": "new"} for one in given[changed]]
    second = gone_on(first)
    search(second)
    made = {task for _, task, _ in second.made[len(first.made) + 1 :]}
    assert made.issuperset(one["id"] for one in given[changed])
    third = gone_on(second)
    search(third)
    assert len(third.made) == len(second.made) + 1


def test_a_search_whose_program_has_another_default_by_now_is_another(tmp_path):
    first = Script(earns)
    interrupted(first, 9)
    with pytest.raises(KeyboardInterrupt):
        first.search(journal=tmp_path / "j.jsonl")
    written = (tmp_path / "j.jsonl").read_bytes()
    second = gone_on(first)
    second.served, second.roots = 7, {7: "another default"}
    with pytest.raises(LightningError, match=r"j\.jsonl is of another search \(it began with clerk@v0, .*clerk@v7"):
        second.search(journal=tmp_path / "j.jsonl")
    assert len(second.made) == len(first.made) + 1
    assert (tmp_path / "j.jsonl").read_bytes() == written


def test_a_search_goes_on_where_another_version_of_the_same_default_is_served_by_now(tmp_path):
    first = Script(earns)
    first.search(journal=tmp_path / "j.jsonl", attempts=40)
    second = gone_on(first)
    second.served = 2
    assert second.search(journal=tmp_path / "j.jsonl", attempts=80).base.name == "clerk@v0"


def test_a_search_goes_on_where_what_its_program_asked_for_does_not_arrive(tmp_path):
    first = Script(earns)
    first.search(journal=tmp_path / "j.jsonl", attempts=40)
    second = gone_on(first)
    attempt = second._attempt

    def silent(task: Any) -> float | None:
        reward = attempt(task)
        if len(second.made) == len(first.made) + 1:
            second.asked_for[second._now[1]] = set()
        return reward

    second.optimizer._evaluator._attempt = silent
    assert second.search(journal=tmp_path / "j.jsonl", attempts=40).base.name == "clerk@v0"


def test_another_searchs_journal_is_refused(tmp_path):
    Script(earns).search(journal=tmp_path / "j.jsonl")
    with pytest.raises(LightningError, match="is of another search"):
        Script(earns).search(journal=tmp_path / "j.jsonl", minibatch=2)
    (tmp_path / "notes.txt").write_text("mine\n")
    with pytest.raises(LightningError, match="is of another search"):
        Script(earns).search(journal=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    with pytest.raises(LightningError, match="cannot be used"):
        Script(earns).search(journal=tmp_path / "no" / "folder")


@pytest.mark.parametrize("fault", ["no reward", "no prompt"])
def test_a_program_that_is_mended_is_tried_again_and_not_judged_by_what_the_journal_says_of_it(tmp_path, fault):
    first = Script(lambda task, texts: None if fault == "no reward" else 0.5)
    first._names = () if fault == "no prompt" else first._names
    with pytest.raises(LightningError):
        first.search(journal=tmp_path / "j.jsonl")
    second = Script(earns)
    second.made = list(first.made)  # so that its attempts have ids of their own
    assert second.search(journal=tmp_path / "j.jsonl").best.name != "clerk@v0"


def test_a_proxy_that_has_not_got_the_page_does_not_erase_the_journal(tmp_path, monkeypatch):
    """The daemon's own 404 says that no attempt asked for the prompt, which a mended program does."""
    client = PromptClient(Reached("http://127.0.0.1:9", None, None))
    monkeypatch.setattr(client, "_once", lambda *request: (404, b"<html>not found</html>"))
    first = Script(earns)
    first.used_in = client.used_in
    with pytest.raises(LightningError, match="is not a lightning-trainer daemon"):
        first.search(journal=tmp_path / "j.jsonl")
    second = Script(earns)
    second.made, second.asked_for = list(first.made), first.asked_for
    second.search(journal=tmp_path / "j.jsonl")
    whole = Script(earns)
    whole.search()
    assert len(second.made) == len(whole.made) + 1, "what had ended was not made again"


def test_a_search_goes_on_after_a_first_attempt_that_did_not_ask_for_the_prompt(tmp_path):
    first = Script(earns)
    first.silent = {"clerk"}
    interrupted(first, 5)
    with pytest.raises(KeyboardInterrupt):
        first.search(journal=tmp_path / "j.jsonl")
    second = Script(earns)
    second.made, second.asked_for = [("", "", {})] * 5, {one: {"clerk"} for one in first.asked_for}
    second.search(journal=tmp_path / "j.jsonl")
    whole = Script(earns)
    whole.silent = {"clerk"}
    whole.search()
    assert len(second.made) == len(whole.made) + 1, "what had arrived since makes no other search of it"


def test_a_line_that_was_cut_off_is_made_again(tmp_path):
    path = tmp_path / "j.jsonl"
    for number in range(2):
        journal = Journal(path, "s")
        journal.write(["a", number], number)
        journal.close()
    path.write_bytes(path.read_bytes()[:-4])
    journal = Journal(path, "s")
    assert (journal.take(["a", 0]), journal.take(["a", 0]), journal.take(["a", 1])) == (0, None, None)
    journal.write(["a", 1], 1)
    journal.close()
    assert [json.loads(line)["said"] for line in path.read_text().splitlines()] == ["s", 0, 1]


def test_a_line_that_cannot_be_read_is_left_out_and_what_follows_it_counts(tmp_path, caplog):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, "s")
    for number in range(3):
        journal.write(["a", number], number)
    journal.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"\0\0\n", *lines[3:]]))
    for made_again in (None, 1):
        journal = Journal(path, "s")
        assert [journal.take(["a", number]) for number in range(3)] == [0, made_again, 2]
        if made_again is None:
            journal.write(["a", 1], 1)
        journal.close()
    assert "that cannot be read are left out: 1" in caplog.text


def test_two_searches_do_not_write_one_journal(tmp_path):
    journal = Journal(tmp_path / "j", "s")
    with pytest.raises(LightningError, match="another search is writing"):
        Journal(tmp_path / "j", "s")
    journal.close()
    Journal(tmp_path / "j", "s").close()
