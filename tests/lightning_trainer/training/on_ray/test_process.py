"""Policies that share a process: who starts it, who ends it, and what the others hear when it is replaced."""

import asyncio
from pathlib import Path

import pytest

from lightning_trainer.errors import TrainerBrokenError, TrainerDiedError, TrainingError
from lightning_trainer.training.process import TrainerProcess
from lightning_trainer.training.remote import TrainerClient, make_trainers
from lightning_trainer.training.settings import TrainerSettings


class Process(TrainerProcess):
    """Answers what it is told to, and keeps what was asked of it."""

    def __init__(self, *policies: str) -> None:
        super().__init__([TrainerSettings(policy, Path("model"), base="one") for policy in policies])
        self.said: list[str] = []
        self.fails: BaseException | None = None
        self.computing_at_once = 0

    async def _start(self) -> None:
        self.said.append("start")
        self.process_id = 7

    async def _end(self) -> None:
        self.said.append("end")
        self.process_id = None

    async def _asked(self, what, policy, *arguments):
        self.said.append(" ".join((what, policy, *map(str, arguments))))
        self.computing_at_once += 1
        await asyncio.sleep(0)
        assert self.computing_at_once == 1
        self.computing_at_once -= 1
        failure, self.fails = self.fails, None
        if failure is not None:
            raise failure
        return policy

    def heard(self) -> list[str]:
        said, self.said = self.said, []
        return said


@pytest.fixture
def pair():
    process = Process("a", "b")
    return process, TrainerClient("a", process), TrainerClient("b", process)


async def test_the_first_starts_it_the_last_ends_it_and_calls_are_one_at_a_time(pair):
    process, a, b = pair
    with pytest.raises(TrainingError, match="not running"):
        await a.score([[1, 2]])
    await asyncio.gather(a.start(), b.start())
    assert process.heard() == ["end", "start", "open a", "open b"]
    assert (a.process_id, b.process_id, a.companions) == (7, 7, ("b",))
    assert await asyncio.gather(a.publish(Path("x"), 1), b.load(Path("y")), a.score([[1, 2]])) == ["a", "b", "a"]
    process.heard()
    await a.close()
    assert process.heard() == [], "a busy process is not waited for"
    assert (a.process_id, b.process_id) == (None, 7)
    with pytest.raises(TrainingError, match="not running"):
        await a.score([[1, 2]])
    await b.score([[1, 2]])
    assert process.heard() == ["drop a", "call b score [[1, 2]]"]
    await a.start()
    await b.close()
    await a.close()
    assert process.heard() == ["open a", "end"]


async def test_what_is_closed_again_and_again_is_dropped_once(pair):
    process, a, b = pair
    await a.start()
    await b.start()
    process.heard()
    for _ in range(3):  # a daemon that follows another one closes it each time that it looks
        await a.close()
    await b.score([[1, 2]])
    assert process.heard() == ["drop a", "call b score [[1, 2]]"]


async def test_one_that_begins_anew_leaves_the_others_where_they_are(pair):
    process, a, b = pair
    await a.start()
    await b.start()
    process.heard()
    process.fails = TrainingError("as foreseen")
    with pytest.raises(TrainingError, match="as foreseen"):
        await a.score([[1, 2]])
    await b.score([[1, 2]])
    await a.restart()
    assert process.heard() == ["call a score [[1, 2]]", "call b score [[1, 2]]", "open a"]
    await b.close()
    await a.restart()
    assert process.heard() == ["end", "start", "open a"], "one that is alone gets a new process"


@pytest.mark.parametrize("failure", [TrainerDiedError("it died"), TrainerBrokenError("nobody thought of it")])
async def test_a_process_that_is_not_to_be_relied_on_is_replaced_once_and_all_hear_so(pair, failure):
    process, a, b = pair
    await a.start()
    await b.start()
    process.heard()
    process.fails = failure
    with pytest.raises(type(failure)):
        await a.score([[1, 2]])
    with pytest.raises(TrainerDiedError, match=f"the process that trains a, b has to be replaced \\({failure}\\)"):
        await b.score([[1, 2]])
    assert process.heard() == ["call a score [[1, 2]]"]
    await asyncio.gather(b.restart(), a.restart())
    assert process.heard() == ["end", "start", "open b", "open a"]
    process.fails = failure  # found out by who wants to begin anew beside others
    await a.restart()
    assert process.heard() == ["open a", "end", "start", "open a"]
    with pytest.raises(TrainerDiedError, match="has to be replaced"):
        await b.score([[1, 2]])


async def test_a_start_that_fails_leaves_nobody_open_and_the_next_one_begins_from_nothing(pair):
    process, a, b = pair
    process.fails = TrainingError("no such model")
    with pytest.raises(TrainingError, match="no such model"):
        await a.start()
    await b.start()
    assert process.heard() == ["end", "start", "open a", "end", "start", "open b"]
    assert (a.process_id, b.process_id) == (None, 7)


def test_policies_of_one_base_share_a_process_and_the_others_have_their_own():
    bases = {"a": "one", "b": None, "c": "one", "d": None, "e": "two"}
    settings = [TrainerSettings(name, Path("model"), base=base) for name, base in bases.items()]
    trainers = dict(zip(bases, make_trainers("inprocess", settings), strict=True))
    assert {name: trainer.companions for name, trainer in trainers.items()} == {
        "a": ("c",),
        "b": (),
        "c": ("a",),
        "d": (),
        "e": (),
    }
    assert trainers["a"].process is trainers["c"].process
