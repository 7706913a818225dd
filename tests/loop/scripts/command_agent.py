"""An agent as a command: it knows neither lightning-trainer nor who runs it. The task comes in, the reward goes out."""

import json
import os
import sys

from openai import OpenAI

task = json.load(sys.stdin)
if task["question"] == "fail":
    sys.exit("the tool is broken")
reply = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key="unused", timeout=300).chat.completions.create(
    model="tiny", messages=[{"role": "user", "content": task["question"]}], max_tokens=4, temperature=1.0
)
print("thinking aloud")
# The length of an untrained model's answer differs from attempt to attempt; any number will do here.
text = reply.choices[0].message.content or ""
print(json.dumps({"reward": sum(map(ord, text)) % 7 / 7, "rewards": {"length": len(text)}}))
