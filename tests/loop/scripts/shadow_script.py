"""Live traffic as users bring it: two people ask a question at a time, until a new version is served."""

import json
import os
import sys
import time
import urllib.request

import lightning_instrumentation as lt
from openai import OpenAI

url = os.environ["LIGHTNING_ENDPOINT"]
client = OpenAI(base_url=f"{url}/v1", api_key="unused", timeout=300)
wanted = int(sys.argv[1])


@lt.agent("tester")
def answer(question: str) -> str:
    """Answer, stream the answer to the second half of the question, and return the version that spoke."""
    messages: list = [{"role": "user", "content": question}]
    made = client.chat.completions.with_raw_response.create(model="tiny", messages=messages, max_tokens=6)
    said = made.parse().choices[0].message.content or ""
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
    for _ in client.chat.completions.create(model="tiny", messages=messages, max_tokens=6, stream=True):
        pass
    return made.headers["x-lightning-policy-version"]


def live_version() -> int:
    with urllib.request.urlopen(f"{url}/lightning/policies/tiny", timeout=60) as response:
        return json.load(response)["live_version"]


give_up, answered = time.monotonic() + 300, set()
number = 0
while live_version() < wanted and time.monotonic() < give_up:
    number += 1
    for side in ("better", "worse"):  # for the judge: a group whose attempts earn the same teaches nothing
        with lt.rollout(f"question-{number}", attempt_id=f"question-{number}-{side}", input="Say something."):
            answered.add(answer(f"question {number}"))
lt.flush(30)
print(json.dumps(sorted(answered)))
