"""A program of the user's that loops, forks, eats memory or prints garbage gives no reward, and nothing of it stays."""

import asyncio
import json
import sys
import time
from dataclasses import replace

import psutil
import pytest
from lightning_instrumentation import semconv

from lightning_trainer.errors import JudgeError
from lightning_trainer.ingest.reading import read_spans
from lightning_trainer.judges.attempts import JudgedSpans
from lightning_trainer.judges.kinds.program import ProgramJudge
from lightning_trainer.judges.models.budget import Budget

ANSWERED = "import json, sys; told = json.load(sys.stdin); "


@pytest.fixture
def run(judge_config, attempt_to_judge, tmp_path):
    """``run(program)``: the verdicts of a Python program on one attempt, or on three at once."""

    async def run(program=None, names="a", asked=None, answers=None, **settings):
        if program is not None:
            settings["command"] = [sys.executable, "-S", "-c", program]  # it needs nothing of site-packages
        config = judge_config("program", working_dir=tmp_path, **{"timeout_s": 60, **settings})
        said = {name: ["It is 6.", f"Bye, {name}."] if answers is None else answers for name in names}
        spans = [span for name in names for span in attempt_to_judge(name, said[name])]
        if asked is not None:
            told = {semconv.ROLLOUT_INPUT: json.dumps(asked)}
            spans = [replace(span, attributes={**span.attributes, **told}) for span in spans]
        program_judge = ProgramJudge(config)
        attempts = JudgedSpans(spans, read_spans(spans).attempts).attempts
        return await program_judge.verdicts(attempts, program_judge.question(attempts), Budget())

    return run


@pytest.mark.parametrize(
    ("line", "value", "reason"),
    [
        ("0.25", 0.25, ""),
        ("3", 3.0, ""),
        ("true", 1.0, ""),
        ('{"score": 0.5, "reason": "half"}', 0.5, "half"),
        ('{"score": null, "reason": "no idea"}', None, "no idea"),
        ("null", None, "the program gave no score"),
    ],
)
async def test_the_last_line_is_the_score(run, line, value, reason):
    (verdict,) = await run(f"print('a line before')\nprint({line!r})\nprint()")
    assert (verdict.value, verdict.reason) == (value, reason)


async def test_it_is_given_what_was_said(run):
    (verdict,) = await run(
        ANSWERED
        + "print(json.dumps({'score': len(told['calls']), 'reason': '|'.join([told['answer'], told['task_id'], "
        "told['calls'][1]['messages'][2]['content'], told['calls'][0]['agent']])}))"
    )
    assert (verdict.value, verdict.reason) == (2.0, "Bye, a.|2*3|It is 6.|solver")


async def test_a_whole_group_at_once(run):
    scores = (
        ANSWERED
        + "print(json.dumps({'scores': {a['attempt_id']: float(a['answer'] == 'Bye, b.') for a in told['attempts']}}))"
    )
    verdicts = await run(scores, "abc", whole_group=True)
    assert [verdict.value for verdict in verdicts] == [0.0, 1.0, 0.0]
    with pytest.raises(JudgeError, match="each of the 3 attempt ids once"):
        await run(ANSWERED + "print(json.dumps({'scores': {'a': 1}}))", "abc", whole_group=True)


async def test_each_call_gets_its_score(run):
    scored = "[{'score': len(told['calls'][0]['answer']['content']), 'reason': 'its length'}, None]"
    first, second = await run(f"{ANSWERED}print(json.dumps({{'scores': {scored}}}))", per="call")
    assert (first.call, first.value, first.reason) == (0, 8.0, "its length")
    assert (second.call, second.value, second.reason) == (1, None, "the program gave no score")
    for wrong in ("{'scores': [1]}", "{'scores': {'0': 1, '1': 1}}", "[1, 1]", "1"):
        with pytest.raises(JudgeError, match="one score or null for each of the 2 calls"):
            await run(f"import json; print(json.dumps({wrong}))", per="call")


async def test_each_agent_gets_its_score(run):
    (verdict,) = await run('print(\'{"scores": {"solver": 0.5}}\')', per="agent")
    assert (verdict.agent, verdict.value) == ("solver", 0.5)
    with pytest.raises(JudgeError, match="each of the 1 agents once"):
        await run('print(\'{"scores": {"planner": 0.5}}\')', per="agent")


async def test_a_function_is_enough(run, tmp_path):
    (tmp_path / "scores.py").write_text(
        "def polite(told):\n    print('some noise')\n    return {'score': 1.0, 'reason': told['answer']}\n"
    )
    for named in ("scores.py:polite", "scores:polite"):
        (verdict,) = await run(function=named)
        assert (verdict.value, verdict.reason) == (1.0, "Bye, a.")


REWARDS = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return {"score": solution_str == ground_truth, "reason": data_source}

def trls(prompts, completions, ground_truth, **columns):
    assert (prompts[0][-1]["content"], columns) == ("What is 2 * 3?", {"data_source": ["d"], "id": [7]})
    return [float(completions[0][0]["content"] == ground_truth[0])]

def grade(sample, item):
    return sample["output_text"] == item["ground_truth"]
"""


@pytest.mark.parametrize(("name", "reason"), [("compute_score", "d"), ("trls", ""), ("grade", "")])
async def test_a_reward_function_is_told_what_its_parameters_name(run, tmp_path, name, reason):
    (tmp_path / "scores.py").write_text(REWARDS)
    asked = {"id": 7, "data_source": "d", "ground_truth": "Bye, a."}
    (verdict,) = await run(function=f"scores.py:{name}", asked=asked)
    assert (verdict.value, verdict.reason) == (1.0, reason)
    with pytest.raises(JudgeError, match="ground_truth"):
        await run(function=f"scores.py:{name}", asked="What is 2 * 3?")


async def test_what_has_no_answer_is_not_scored(run, tmp_path):
    (tmp_path / "scores.py").write_text(REWARDS)
    (verdict,) = await run(function="scores.py:compute_score", answers=())
    assert (verdict.value, verdict.reason) == (None, "no answer was recorded")


@pytest.mark.parametrize(
    "line",
    [
        "",
        "garbage \x00\x01",
        "7/10",
        '"0.5"',
        "NaN",
        "1e400",
        '{"points": 1}',
        '{"score": "1"}',
        "[1]",
        "[" * 9999,
    ],
)
async def test_garbage_is_no_score(run, line):
    with pytest.raises(JudgeError, match="the last line of its output"):
        await run(f"import sys; sys.stdout.buffer.write({line.encode()!r})")


async def test_a_program_that_fails_says_why(run):
    with pytest.raises(JudgeError, match="exit status 3: no such rubric"):
        await run("import sys; print(1.0); sys.stderr.write('no such rubric'); sys.exit(3)")
    with pytest.raises(JudgeError, match="exit status 127"):
        await run(command=["no-such-program"])


async def test_two_gigabytes_are_too_many(run):
    with pytest.raises(JudgeError, match="MemoryError"):
        await run("x = bytearray(2 << 30); print(len(x))", memory_mib=512)


async def test_endless_output_ends(run):
    with pytest.raises(JudgeError, match="wrote more than"):
        await run("while True: print('x' * 1000)")


async def test_what_does_not_read_its_input_is_not_waited_for(run):
    (verdict,) = await run("print(1)")
    assert verdict.value == 1.0


async def test_a_line_ends_in_a_line_feed_alone(run):
    """As JavaScript writes JSON: these characters are not escaped."""
    line = '{"score": 0.5, "reason": "one\u2028two\x85three"}'
    (verdict,) = await run(f"import sys; sys.stdout.buffer.write({line!r}.encode() + b'\\r\\n')")
    assert (verdict.value, verdict.reason) == (0.5, "one\u2028two\x85three")


def alive(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


async def gone(pids):
    deadline = time.monotonic() + 30
    while alive(pids) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return not alive(pids)


LOOP = """
import os, sys, time
open({file!r}, 'a').write(f'{{os.getpid()}}\\n')
while True: pass
"""
FORKS = """
import os, sys, time
for _ in range(5):
    if os.fork() == 0:
        if {session}: os.setsid()
        break
open({file!r}, 'a').write(f'{{os.getpid()}}\\n')
time.sleep(600)
"""


@pytest.mark.process
async def test_what_loops_or_forks_is_killed_with_all_that_it_started(run, tmp_path):
    async def killed(file, program) -> None:
        with pytest.raises(JudgeError, match=r"did not end within timeout_s = 4 and was killed"):
            await run(program.format(file=str(file)), timeout_s=4)
        pids = [int(line) for line in file.read_text().split()]
        assert pids
        assert await gone(pids)

    programs = {"loops": LOOP, **{f"forks-{own}": FORKS.replace("{session}", str(own)) for own in (False, True)}}
    await asyncio.gather(*(killed(tmp_path / name, program) for name, program in programs.items()))


async def test_a_child_that_holds_its_output_open_holds_nobody_up(run, tmp_path):
    file = tmp_path / "pids"
    began = time.monotonic()
    leaves = f"if os.fork() == 0:\n    open({str(file)!r}, 'w').write(str(os.getpid()))\n    time.sleep(600)\n"
    (verdict,) = await run(f"import os, time\n{leaves}time.sleep(0.5)\nprint(0.5)")
    assert verdict.value == 0.5
    assert time.monotonic() - began < 60
    assert await gone([int(file.read_text())])


async def test_one_that_is_given_up_on_is_killed(run, tmp_path):
    file = tmp_path / "pids"
    judging = asyncio.create_task(run(LOOP.format(file=str(file)), timeout_s=600))
    while not file.exists() or not file.read_text():
        await asyncio.sleep(0.02)
    judging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await judging
    assert await gone([int(line) for line in file.read_text().split()])
