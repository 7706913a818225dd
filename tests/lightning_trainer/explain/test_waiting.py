"""What an attempt waits for that no step has taken, and that no step takes it now, however many groups are ready."""

import pytest

from lightning_trainer.store.tables import pauses
from lightning_trainer.store.worklist.waiting import only_for


@pytest.fixture
async def ready(store, attempt):
    """A whole group that no step has taken."""
    for number in range(4):
        await store.append(attempt(f"a{number}", reward=float(number % 2), begins_s=60 * number).spans)


@pytest.fixture
def more(folder):
    """``more("max_steps = 1")``: settings of the policy besides those of the other tests."""

    def add(settings: str) -> None:
        config = folder / "lightning.toml"
        config.write_text(config.read_text() + settings)

    return add


async def test_a_whole_group_waits_for_a_step(ready, explain):
    assert "is not trained yet: waiting: group g is full, and a step starts when" in explain("r-a1")[0]


async def test_a_pause_is_said_until_it_ends(ready, store, explain):
    await store.write(lambda connection: pauses.put(connection, "math", "a look at the rewards"))
    assert explain("r-a1")[0] == (
        "rollout r-a1 is not trained yet: held: training of policy math is paused: a look at the rewards; "
        "`lightning-trainer resume` lets it go on"
    )
    await store.write(lambda connection: pauses.remove(connection, "math"))
    assert "not trained yet: waiting" in explain("r-a1")[0]


@pytest.fixture
async def stepped(store, take_step, attempt, ready):
    """A step has been done before."""
    await store.append([*attempt("b1", group="h").spans, *attempt("b2", group="h", reward=0.0).spans])
    await take_step(["b1", "b2"])


@pytest.fixture
async def unfrozen(store, attempt):
    """A policy that is trained again: what ended before, while it was frozen, and after that."""
    await store.begin_policy("math")
    await store.enroll("math")
    await store.append(attempt("before", group="g1").spans)
    await store.write(lambda connection: only_for(connection, []))
    for name in ("meanwhile", "beside"):
        await store.append(attempt(name, group="g2").spans)
    return lambda: store.write(lambda connection: only_for(connection, ["math"]))


async def test_what_ended_while_the_policy_was_frozen_waits_for_nothing(unfrozen, store, attempt, explain):
    said = (
        "rollout r-meanwhile is not trained: recorded while frozen: it ended while policy math was frozen "
        "(train = false) or not configured, and nothing waits for a step of it then; what ends now is trained"
    )
    assert explain("r-meanwhile")[0] == said, "before the daemon has started again"
    await unfrozen()
    await store.append(attempt("after", group="g3").spans)
    assert explain("r-meanwhile")[0] == said
    assert not [line for line in explain("r-meanwhile") if "group of one" in line]
    for name in ("r-before", "r-after"):
        assert "is not trained yet: group of one" in explain(name)[0]


async def test_a_policy_that_is_frozen_now_says_that(unfrozen, more, explain):
    more("train = false\n")
    assert "train = false: policy math records and serves" in explain("r-meanwhile")[0]


STAGE = "[[policy.stage]]\nsteps = {}\n"
FILE = STAGE + 'data = "shown.jsonl"\nalgorithm = "sft"\n'


@pytest.mark.parametrize("settings", ["max_steps = 1\n", STAGE.format(1)])
async def test_after_the_last_step_none_takes_it(stepped, more, explain, settings):
    more(settings)
    assert "not trained yet: finished: step 1 was the last that was asked for of policy math" in explain("r-a1")[0]


async def test_before_the_last_step_it_waits_for_one(stepped, more, explain):
    more("max_steps = 2\n")
    assert "not trained yet: waiting: group g is full" in explain("r-a1")[0]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            FILE.format(3) + STAGE.format(2),
            "yet: shown a file: the steps up to 3 of policy math are shown the data of their stage, and not "
            "what agents do; the attempt waits for the steps after them",
        ),
        (STAGE.format(1) + FILE.format(3), "the steps up to 4 of policy math are shown"),
        (STAGE.format(1) + FILE.format(3), "agents do; no later step takes the attempt"),
        (STAGE.format(1) + FILE.replace("steps = {}\n", ""), "all further steps of policy math are shown"),
    ],
)
async def test_steps_that_are_shown_a_file_take_none(stepped, folder, more, explain, settings, sentence):
    (folder / "shown.jsonl").touch()
    more(settings)
    assert sentence in explain("r-a1")[0]
