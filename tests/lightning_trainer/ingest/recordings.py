"""What real instrumentations sent while one program ran; ``recorded/*.json`` names packages, versions and licence.

The program: 6 calls that a model answered (the second with two choices, the fourth a stream that its reader left) and
one that the server refused; the last two answers go to a LangChain agent "solver" with the tool "calculator". Where
"ours" is in a recording, our own client ran in the same process.
"""

import json
from pathlib import Path

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lightning_trainer.ingest.otlp import decode_request
from lightning_trainer.types import Span

_FOLDER = Path(__file__).with_name("recorded")
WITH_OURS = ("genai", "openinference", "openllmetry")
ALL = (*WITH_OURS, "genai_without_content", "openllmetry_numbered")


def recording(name: str, part: str = "foreign") -> list[Span]:
    """Return spans as the receiver would store them."""
    document = json.loads((_FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return list(decode_request(request_of(document[part])).spans)


def request_of(otlp_json: dict) -> bytes:
    return ParseDict(otlp_json, ExportTraceServiceRequest()).SerializeToString()
