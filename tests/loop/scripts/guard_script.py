"""An evaluation as a user would write it, run by the daemon: it calls the candidate and prints a score.

The score is not the answer's: the test says which version earns what, so that it knows what has to be refused.
"""

import json
import os
from pathlib import Path

from openai import OpenAI

candidate = os.environ["LIGHTNING_CANDIDATE"]
policy, _, version = candidate.partition("@v")
client = OpenAI(base_url=os.environ["LIGHTNING_ENDPOINT"] + "/v1", api_key="none", timeout=300)


def answered_by(model: str) -> str:
    messages: list = [{"role": "user", "content": "a held-out question"}]
    answer = client.chat.completions.with_raw_response.create(model=model, messages=messages, max_tokens=4)
    return answer.headers["x-lightning-policy-version"]


assert answered_by(candidate) == version
with Path("seen.jsonl").open("a") as seen:
    seen.write(json.dumps({"candidate": candidate, "live": int(answered_by(policy))}) + "\n")
print(json.loads(Path("scores.json").read_text())[version])
