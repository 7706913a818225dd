"""The openai client, watched by Phoenix's instrumentation (OpenInference) as well."""

import os

from openinference.instrumentation.openai import OpenAIInstrumentor
from phoenix.otel import register

from benchmarks.frameworks.programs.clients import openai_client

provider = register(endpoint=f"{os.environ['TELEMETRY_URL']}/v1/traces", protocol="http/protobuf", verbose=False)
OpenAIInstrumentor().instrument(tracer_provider=provider)
play = openai_client.play
