"""The openai client, traced by MLflow as well, which sends its traces over OTLP."""

import os

os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{os.environ['TELEMETRY_URL']}/v1/traces"
os.environ["MLFLOW_TRACKING_URI"] = os.environ["TELEMETRY_URL"]
os.environ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"

import mlflow

from benchmarks.frameworks.programs.clients import openai_client

mlflow.openai.autolog()
play = openai_client.play
