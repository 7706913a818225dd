"""The openai client as Langfuse wraps it, imported from Langfuse's package."""

import os

os.environ |= {
    "LANGFUSE_PUBLIC_KEY": "pk-unused",
    "LANGFUSE_SECRET_KEY": "sk-unused",
    "LANGFUSE_HOST": os.environ["TELEMETRY_URL"],
}

from langfuse.openai import openai  # noqa: F401  (it wraps the client of that package)

from benchmarks.frameworks.programs.clients import openai_client

play = openai_client.play
