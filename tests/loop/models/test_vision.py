"""An agent shows images to a vision-language model: stored once, sampled, trained and published, and all agree.

Slow: an engine and a trainer of their own, since the model is another one.
"""

import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.loop, pytest.mark.engine, pytest.mark.verl]

AGENT = Path(__file__).parents[1] / "scripts" / "vision_script.py"
STEPS = 3
POLICY = """
[[policy]]
name = "tiny"
agents = ["tester"]
model = "random:tiny-vision"
group_size = 2
groups_per_step = 2
max_sample_tokens = 900
samples = "merged"
non_text = "keep"
optimizer.lr = 1e-3
"""


def test_images_travel_from_the_agent_to_the_update_and_the_probabilities_agree(make_daemon):
    daemon = make_daemon(POLICY, training='backend = "inprocess"')
    daemon.config.write_text(daemon.config.read_text().replace("max_model_len = 256", "max_model_len = 1024"))
    with daemon.running("tiny"):
        daemon.script(AGENT, str(STEPS))
        assert daemon.answer("tiny").version == str(STEPS)
        said = _refused(daemon.url, "https://host/cat.png")
        held = daemon.get("/lightning/status")["store"]
    assert "not fetched" in said
    lines = (daemon.folder / "state" / "metrics" / "tiny.jsonl").read_text().splitlines()
    rows = {row["step"]: row for row in map(json.loads, lines)}
    assert len(rows) == STEPS, daemon.tail()
    for row in rows.values():
        # From step 2 on the images went through weights that training has moved, in the engine too.
        assert row["mismatch/abs_mean"] < 1e-5
        assert row["mismatch/abs_max"] < 1e-4
        assert row["probe/max_abs"] < 1e-4
        assert row["grad_norm"] > 0
        assert row["ledger/dropped"] == 0
    # One image for each of the tasks, and the one that every attempt shows in its second turn.
    assert held["media"] == 2 * STEPS + 1
    with daemon.database() as database:
        (embedded,) = database.execute("SELECT count(*) FROM spans WHERE instr(body, 'iVBORw0KGgo') > 0").fetchone()
        (named,) = database.execute("SELECT count(*) FROM spans WHERE instr(body, 'sha256:') > 0").fetchone()
    assert embedded == 0
    assert named >= 2 * 4 * STEPS


def _refused(url: str, address: str) -> str:
    image = {"type": "image_url", "image_url": {"url": address}}
    body = {"model": "tiny", "max_tokens": 4, "messages": [{"role": "user", "content": [image]}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=60)
    assert refused.value.code == 400
    return json.load(refused.value)["error"]["message"]
