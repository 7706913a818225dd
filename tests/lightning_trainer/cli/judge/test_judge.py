"""``lightning-trainer judge``: recorded attempts get the rewards that they lack, whoever has the store open."""

import asyncio
import json
import sys
import threading
import uuid

import pytest
from lightning_instrumentation import semconv
from typer.testing import CliRunner

from lightning_trainer.cli.app import app
from lightning_trainer.cli.judge.judge import engines
from lightning_trainer.config.file import load_config
from lightning_trainer.daemon.service import Daemon
from lightning_trainer.errors import JudgeError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.recording import fingerprint_digest
from lightning_trainer.store import SqliteStore
from lightning_trainer.store.scan import read_only
from lightning_trainer.store.tables import spans as span_table
from lightning_trainer.types import Span, SpanEvent

POLITE = """
import json, sys
told = json.load(sys.stdin)
open("asked", "a").write("x")
if "Bye" not in told["answer"]:
    sys.exit("it never ends")
print(json.dumps({"score": told["answer"].count("e") / 10, "reason": f"read {len(told['calls'])} calls"}))
"""
CONFIG = """
[daemon]
port = 0
token = "a-token-of-the-tests"

[[judge]]
name = "polite"
kind = "program"
command = [{python!r}, "polite.py"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "polite.py").write_text(POLITE)
    (tmp_path / "lightning.toml").write_text(CONFIG.format(python=sys.executable))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
async def recorded(folder, attempt_spans):
    """Attempts a and b of task t, and c of task u, of two calls' words each."""
    from lightning_instrumentation.spans.messages import as_json

    def with_words(spans, text):
        root, call = spans
        said = [{"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": "stop"}]
        asked = [{"role": "user", "parts": [{"type": "text", "content": "Hello."}]}]
        call.attributes.update({semconv.INPUT_MESSAGES: as_json(asked), semconv.OUTPUT_MESSAGES: as_json(said)})
        return [root, call]

    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
        await store.append(with_words(attempt_spans("a", [1], 10**18), "Bye."))
        await store.append(with_words(attempt_spans("b", [1], 10**18 + 50), "Hello."))
        await store.append(with_words(attempt_spans("c", [1], 10**18 + 90, task="u"), "Bye, see you."))
    return folder


def run(*arguments, expect=0):
    done = CliRunner().invoke(app, ["judge", *arguments], env={"COLUMNS": "200"}, catch_exceptions=False)
    assert done.exit_code == expect, done.output
    return done.output


def rewards(folder):
    with read_only(folder / ".lightning" / "lightning.sqlite") as connection:
        spans = span_table.select_of_attempts(connection, ["a", "b", "c"])
    return {(one.attempt_id, one.value) for one in read_spans(spans).evaluations}


def test_a_rollout_is_judged_once(recorded):
    said = run("r-a", "--judge", "polite")
    assert "a        t     0.1    read 1 calls" in said
    assert "judge polite gave 1 of 1 attempts a reward" in said
    assert "1 had it already" in run("r-a", "--judge", "polite")
    assert (recorded / "asked").read_text() == "x"
    run("r-a", "--judge", "polite", "--again")
    assert (recorded / "asked").read_text() == "xx"


def test_rewards_of_the_judge_as_it_was_are_told(recorded):
    run("r-a", "--judge", "polite")
    settings = (recorded / "lightning.toml").read_text()
    (recorded / "lightning.toml").write_text(settings + "memory_mib = 1024\n")
    assert "1 had it already; 1 of them from the judge with other settings (--again)" in run("r-a", "--judge", "polite")
    told = json.loads(run("r-a", "--judge", "polite", "--json"))
    assert told["left_out"] == ["1 of them from the judge with other settings (--again)"]
    assert "other settings" not in run("r-a", "--judge", "polite", "--again")
    assert "other settings" not in run("r-a", "--judge", "polite")


def test_one_that_cannot_be_judged_is_missing_and_the_command_says_so(recorded):
    said = run("t", "--judge", "polite", expect=1)
    assert "missing" in said
    assert "it never ends" in said
    assert "gave 1 of 2 attempts a reward" in said
    assert rewards(recorded) == {("a", 0.1), ("b", None)}


def test_explain_says_who_gave_a_reward_and_why(recorded):
    run("t", "--judge", "polite", expect=1)
    done = CliRunner().invoke(app, ["explain", "r-a"], env={"COLUMNS": "200"})
    assert f"- polite 0.1 by judge polite (program, {sys.executable} polite.py): read 1 calls" in done.output
    done = CliRunner().invoke(app, ["explain", "r-b"], env={"COLUMNS": "200"})
    assert "- polite no number by judge polite" in done.output
    assert "it never ends" in done.output
    told = json.loads(CliRunner().invoke(app, ["explain", "r-a", "--json"]).output)
    (evaluation,) = told["rollouts"][0]["attempts"][0]["evaluations"]
    assert (evaluation["value"], evaluation["explanation"]) == (0.1, "read 1 calls")


def test_all_since_a_time(recorded):
    run("--judge", "polite", "--since", "2000-01-01", expect=1)
    assert rewards(recorded) == {("a", 0.1), ("b", None), ("c", 0.3)}
    assert "there is no attempt since 1s" in run("--judge", "polite", "--since", "1s", expect=2)


def test_a_dry_run_asks_nobody_and_shows_what_it_would_ask(recorded):
    said = run("t", "--judge", "polite", "--dry-run")
    assert "would be asked 2 questions about 2 attempts" in said
    assert '"attempt_id": "a"' in said
    assert not (recorded / "asked").exists()


def test_json_has_everything(recorded):
    told = json.loads(run("u", "--judge", "polite", "--json"))
    assert told["judged"] == [{"attempt_id": "c", "value": 0.3, "reason": "read 1 calls", "remembered": False}]


def test_what_it_prints_commands_no_terminal(recorded):
    (recorded / "polite.py").write_text(r"""print('{"score": 1, "reason": "\\u202ewons"}')""")
    said = run("u", "--judge", "polite", "--json")
    assert "\u202e" not in said
    assert json.loads(said)["judged"][0]["reason"] == "\u202ewons"
    with (recorded / "lightning.toml").open("a") as config:
        rubric = "Is it polite? \\u001b[2J"
        config.write('[[judge]]\nname = "asked"\nkind = "rubric"\nmodel = "m"\n')
        config.write(f'[[judge.criterion]]\nname = "c"\nsays = "{rubric}"\n')
    said = run("u", "--judge", "asked", "--dry-run")
    assert "Is it polite? ␛[2J" in said
    assert "\x1b" not in said


def evaluation(name, value, attempt, **told):
    """An evaluation of an attempt as it is stored."""
    event = SpanEvent(
        semconv.EVALUATION_EVENT, 5, {semconv.EVALUATION_NAME: name, semconv.EVALUATION_SCORE: float(value)}
    )
    own = {semconv.ATTEMPT_ID: attempt, semconv.ROLLOUT_ID: f"r-{attempt}", **told}
    ids = uuid.uuid4().hex, uuid.uuid4().hex[:16]
    return Span(*ids, None, f"evaluate {name}", 5, 5, own, events=(event,))


def said_by(folder):
    """Return what marks a verdict as that of the judge as the folder's configuration has it."""
    (judge,) = load_config(folder / "lightning.toml").judge
    return {semconv.JUDGE_NAME: judge.name, semconv.JUDGE_FINGERPRINT: fingerprint_digest(judge)}


@pytest.fixture
async def labeled(folder, attempt_spans):
    """200 attempts, every second of them right; the judge calls every fourth wrong, and so half of the wrong right."""
    policy = '[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\ngroup_size = 2\n'
    policy += "reward = { polite = { weight = 1.0, correct = true }, score = 0.5 }\n"
    settings = CONFIG.format(python=sys.executable)
    (folder / "lightning.toml").write_text(f'{settings}checked_by = ["score"]\n\n{policy}')
    by, spans = said_by(folder), []
    for number in range(200):
        name = str(number)
        spans += attempt_spans(name, [1], 10**18 + 100 * number, task=str(number // 2))
        spans.append(evaluation("polite", number % 4 != 0, name, **by, **{semconv.JUDGE_PLACE: 0}))
        spans.append(evaluation("score", number % 2, name))
    async with SqliteStore(folder / ".lightning" / "lightning.sqlite") as store:
        await store.append(spans)
    return folder


def test_the_report_has_rates_with_intervals(labeled):
    told = json.loads(run("--judge", "polite", "--report", "--json"))
    rates = told["reliability"]
    assert (rates["labels"], rates["false_positives"]["value"], rates["false_negatives"]["value"]) == (200, 0.5, 0.0)
    assert told["informedness"]["value"] == 0.5
    shown = run("--judge", "polite", "--report")
    assert "200 attempts judged, 200 of them with a right reward (score)" in shown
    assert "where correct = true, (r - 0.500) / 0.500 is trained with, at 0.99" in shown


def test_rates_are_those_of_the_judge_as_it_is_set_now(labeled):
    """What another program said under the name, or a person, says nothing of this one's errors."""
    settings = labeled / "lightning.toml"
    old = settings.read_text()
    settings.write_text(old.replace('"polite.py"]', '"kinder.py"]'))
    told = json.loads(run("--judge", "polite", "--report", "--json"))
    assert (told["judged"], told["reliability"]["labels"]) == (0, 0)
    settings.write_text(old.replace('checked_by = ["score"]', 'checked_by = ["score"]\ntimeout_s = 9'))

    async def label():
        async with SqliteStore(labeled / ".lightning" / "lightning.sqlite") as opened:
            by_hand = {semconv.LABELED_BY: "Ada"}
            await opened.append([evaluation("polite", 0.0, str(number), **by_hand) for number in (1, 3)])

    asyncio.run(label())
    told = json.loads(run("--judge", "polite", "--report", "--json"))
    assert (told["reliability"]["labels"], told["reliability"]["false_negatives"]["value"]) == (200, 0.0)


def test_build_and_explain_train_with_the_corrected_reward(labeled):
    done = CliRunner().invoke(app, ["build", "--out", "samples.jsonl"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in (labeled / "samples.jsonl").read_text().splitlines()]
    credits = {row["attempt_id"]: row["segments"][0]["credit"] for row in rows}
    shrunk = json.loads(run("--judge", "polite", "--report", "--json"))["correction"]["shrunk"]
    # Wrong and called wrong: (0 - 0.5) / 0.5; right and called right: (1 - 0.5) / 0.5, and half of the score beside it.
    assert credits["0"] == pytest.approx(-shrunk)
    assert credits["1"] == pytest.approx(shrunk + 0.5)
    told = json.loads(CliRunner().invoke(app, ["explain", "r-1", "--json"]).output)
    assert told["rollouts"][0]["attempts"][0]["reward"] == pytest.approx(shrunk + 0.5)


def test_a_judge_below_the_floor_is_refused_with_a_sentence(labeled):
    settings = (labeled / "lightning.toml").read_text().replace('["score"]\n', '["score"]\nfloor = 0.9\n')
    (labeled / "lightning.toml").write_text(settings)
    done = CliRunner().invoke(app, ["build", "--out", "samples.jsonl"], env={"COLUMNS": "300"}, catch_exceptions=False)
    assert "judge polite is not corrected and its reward counts as missing: false positives 0.50" in done.output
    assert "less than floor = 0.9" in run("--judge", "polite", "--report")


def chosen(purpose):
    command = ["build", "--for", *purpose.split(), "--out", "chosen.jsonl"]
    return CliRunner().invoke(app, command, env={"COLUMNS": "300"}, catch_exceptions=False)


def test_demonstrations_are_chosen_by_the_corrected_reward(labeled):
    done = chosen("sft --min-reward 1.0")  # as it says, 150 earned that
    assert done.exit_code == 0, done.output
    shrunk = json.loads(run("--judge", "polite", "--report", "--json"))["correction"]["shrunk"]
    rows = [json.loads(line) for line in (labeled / "chosen.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [pytest.approx(shrunk + 0.5)] * 100


@pytest.mark.parametrize("purpose", ["rl", "sft --min-reward 0.1", "dpo"])
def test_a_judge_below_the_floor_chooses_nothing(labeled, purpose):
    settings = (labeled / "lightning.toml").read_text().replace('["score"]\n', '["score"]\nfloor = 0.9\n')
    (labeled / "lightning.toml").write_text(settings)
    done = chosen(purpose)
    assert (done.exit_code, "no_reward" in done.output) == (1, True), done.output
    assert "judge polite is not corrected and its reward counts as missing: false positives 0.50" in done.output


def test_what_it_says_again_and_in_another_place_is_compared(labeled):
    store = labeled / ".lightning" / "lightning.sqlite"

    async def add():
        async with SqliteStore(store) as opened:
            for number in range(1, 9):
                place = {**said_by(labeled), semconv.JUDGE_PLACE: 3}
                await opened.append([evaluation("polite", 0.75, str(2 * number + 1), **place)])

    asyncio.run(add())
    told = json.loads(run("--judge", "polite", "--report", "--json"))
    assert told["earlier_is_better"]["value"] == pytest.approx(0.25)
    assert (told["earlier_is_better"]["count"], told["same_again"]) == (8, None)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("r-a", "--judge", "polite", "--shuffle"), "--shuffle tells attempts in another order than before"),
        (("r-a", "--judge", "rude"), "there is no [[judge]] 'rude' in the configuration: it has polite"),
        (("r-z", "--judge", "polite"), "there is no rollout, attempt, task or group 'r-z': the nearest are r-"),
        (("--judge", "polite"), "name rollouts, tasks or groups to judge, or say --since 2h"),
        (("r-a", "--judge", "polite", "--since", "soon"), "--since 'soon' is not a time: write 30m, 2h, 7d"),
    ],
)
def test_a_mistake_is_one_sentence(recorded, arguments, sentence):
    assert sentence in run(*arguments, expect=2).replace("\n", " ")


def test_a_running_daemon_takes_the_verdicts(recorded):
    loop, stop, ready = asyncio.new_event_loop(), asyncio.Event(), threading.Event()
    daemon = Daemon(load_config(recorded / "lightning.toml"))

    async def serve():
        running = asyncio.create_task(daemon.run(stop))
        while not (recorded / ".lightning" / "daemon.json").exists() and not running.done():
            await asyncio.sleep(0.02)
        ready.set()
        await running

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(60)
        assert "gave 1 of 1 attempts a reward" in run("r-a", "--judge", "polite")
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
    assert rewards(recorded) == {("a", 0.1)}


async def test_a_judge_that_asks_the_policys_engine_needs_the_daemon_that_runs_it(folder):
    judge = '[[judge]]\nname = "known"\nkind = "reference_probability"\n'
    policy = '[[policy]]\nname = "math"\nagents = ["solver"]\nmodel = "random:tiny"\n'
    (folder / "lightning.toml").write_text(judge + policy)
    engine = engines(load_config(folder / "lightning.toml"))(None)
    with pytest.raises(JudgeError, match="the engine of policy math does not score: no daemon runs it; start"):
        await engine.score([[1, 2]])


ASKED = """
[[judge]]
name = "{kind}"
kind = "{kind}"
model = "m"
"""


@pytest.mark.parametrize(("kind", "asked"), [("pairwise", "2 questions"), ("group", "1 question")])
def test_a_dry_run_counts_what_a_group_costs_and_shows_the_first_question_as_it_is(recorded, kind, asked):
    with (recorded / "lightning.toml").open("a") as config:
        config.write(ASKED.format(kind=kind))
    said = run("t", "u", "--judge", kind, "--dry-run")
    assert "cannot be judged" in said, "task u has one attempt, and both kinds compare attempts"
    assert f"would be asked {asked} about 2 attempts" in said
    assert "\n[solver answers]\nBye." in said
    told = json.loads(run("t", "--judge", kind, "--dry-run", "--json"))
    assert (told["questions"], told["attempts"], told["answered_before"]) == (int(asked[0]), 2, 0)
    assert "\n[solver answers]\nBye." in told["first"]


def test_one_attempt_and_groups_by_a_pattern_can_be_named(recorded, attempt_spans):
    async def add():
        async with SqliteStore(recorded / ".lightning" / "lightning.sqlite") as store:
            for attempt, group, rollout in (("a2", "t", "r-a"), ("d", "second-1", "r-d"), ("e", "second-2", "r-e")):
                root, *calls = attempt_spans(attempt, [1], 10**18 + 200)
                root.attributes[semconv.GROUP_ID] = group
                for one in (root, *calls):
                    one.attributes[semconv.ROLLOUT_ID] = rollout
                await store.append([root, *calls])

    asyncio.run(add())
    for named, attempts in (("r-a", "2 attempts"), ("a", "1 attempt:"), ("second-*", "2 attempts")):
        assert f"about {attempts}" in run(named, "--judge", "polite", "--dry-run")
