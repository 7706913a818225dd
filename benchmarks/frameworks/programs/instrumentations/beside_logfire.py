"""The openai client, watched by Logfire as well, which sends its spans over OTLP."""

import os

os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{os.environ['TELEMETRY_URL']}/v1/traces"

import logfire

from benchmarks.frameworks.programs.clients import openai_client

logfire.configure(send_to_logfire=False, console=False)
logfire.instrument_openai()
play = openai_client.play
