"""A version that falls behind on a held-out evaluation is never served: daemon, vLLM, verl, evaluation, all real."""

import json
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.loop, pytest.mark.engine, pytest.mark.verl, pytest.mark.slow]

AGENT = Path(__file__).parent / "scripts" / "agent_script.py"
EVALUATION = Path(__file__).parent / "scripts" / "guard_script.py"
POLICY = """
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny"
group_size = 2
groups_per_step = 2
max_sample_tokens = 256
optimizer.lr = 1e-2
guard = {{ command = [{python}, {evaluation}], timeout_s = 200 }}
"""


@pytest.mark.parametrize("more", ["", "lora = { rank = 4, alpha = 8 }\n"], ids=["all weights", "adapter"])
def test_a_version_goes_live_only_where_its_score_did_not_fall_or_a_person_says_so(make_daemon, more: str, far_apart):
    policy = POLICY.format(python=json.dumps(sys.executable), evaluation=json.dumps(str(EVALUATION))) + more
    daemon = make_daemon(policy, training='backend = "inprocess"')
    scores = {"0": 0.5, "1": 0.25, "2": 0.75, "3": 0.75}
    (daemon.folder / "scores.json").write_text(json.dumps(scores))
    with daemon.running("tiny"):
        daemon.script(AGENT, "--steps", "1")
        after_one = daemon.policy("tiny")
        start = daemon.logprobs("tiny")
        daemon.script(AGENT, "--steps", "2")
        after_two = daemon.policy("tiny")
        end = daemon.logprobs("tiny")
        listed = {row["version"]: row for row in daemon.get("/lightning/policies/tiny/versions")}
        old_engine = daemon.processes("tiny")["old_version_engine"]
        said = daemon.command("promote", "v1")
        promoted = daemon.policy("tiny")
        first = daemon.logprobs("tiny")
        shown = {row["version"]: row for row in daemon.get("/lightning/policies/tiny/versions")}
        daemon.script(AGENT, "--steps", "3")
        after_three = {row["version"]: row for row in daemon.get("/lightning/policies/tiny/versions")}
    assert (after_one["steps_done"], after_one["live_version"]) == (1, 0)
    assert (after_two["steps_done"], after_two["live_version"]) == (2, 2)
    reason = "its held-out score is 0.25, of tiny@v0, which is live, 0.5, and guard.tolerance is 0"
    assert (listed[1]["state"], listed[1]["reason"]) == ("refused", reason)
    assert any(reason in problem for problem in after_one["problems"])
    assert far_apart(start, end) > 1e-3
    seen = [json.loads(line) for line in (daemon.folder / "seen.jsonl").read_text().splitlines()]
    # What calls of the policy got while each was evaluated.
    assert seen == [
        {"candidate": "tiny@v0", "live": 0},
        {"candidate": "tiny@v1", "live": 0},
        {"candidate": "tiny@v2", "live": 0},
        {"candidate": "tiny@v3", "live": 1},
    ]
    assert old_engine is None, "the candidate's engine ended with the evaluation"
    # A person may serve what was refused: it is v1's own weights that answer then, and training goes on from them.
    assert "tiny serves version 1" in said
    assert promoted["live_version"] == 1
    assert far_apart(first, start) > 1e-3
    assert far_apart(first, end) > 1e-3
    assert reason in shown[1]["reason"], "why it was held back is still said"
    assert after_three[3]["parent"] == 1
