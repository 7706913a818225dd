"""The openai client, watched by Traceloop's instrumentation (OpenLLMetry) as well."""

import os

from traceloop.sdk import Traceloop

from benchmarks.frameworks.programs.clients import openai_client

Traceloop.init(app_name="weather", api_endpoint=os.environ["TELEMETRY_URL"], api_key="unused", disable_batch=True)
play = openai_client.play
