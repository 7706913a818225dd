"""agentlightning's adapter on the same rollouts, written as its own tracer writes them.

``TracerTraceToTriplet.adapt``, which makes a list of (prompt, response, reward), is timed; our figure includes what
ours does in addition (masks, merged sequences, credit, the ledger).
"""

import json
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from lightning_instrumentation import semconv
from lightning_instrumentation.spans.packing import unpack_token_ids

from benchmarks.common.peers import peers_python
from benchmarks.common.processes import ROOT
from benchmarks.common.rows import Row
from benchmarks.transitions import speed, workloads
from benchmarks.transitions.workloads import Random, Shape
from lightning_trainer.types import Span

_LIST = Path(__file__).with_name("peer.txt")
_VENV = ROOT / ".bench-peer-transitions"
_TIMEOUT_S = 120
_DEPTH = 10_000


def run(sizes: Sequence[int]) -> list[Row]:
    python, reason = peers_python(_LIST, _VENV)
    if python is None:
        return [Row("peer", "agentlightning 0.3.0", None, note=reason)]
    rows: list[Row] = []
    for spans in sizes:
        rollout = workloads.rollout("large", "g0", spans, Shape(), Random(0), reward=1.0)
        rows.append(_row(python, f"{spans:,} spans in one rollout", rollout))
        ours = speed.in_a_process("one", spans)["seconds"]
        rows.append(Row("peer", f"{spans:,} spans in one rollout, ours", ours, "CPU-s"))
    deep = [span for span in workloads.chain(_DEPTH) if span.attributes[semconv.ATTEMPT_ID] == "deep"]
    rows.append(_row(python, f"a chain {_DEPTH:,} spans deep", deep))
    ours = speed.in_a_process("chain", _DEPTH)["seconds"]
    rows.append(Row("peer", f"a chain {_DEPTH:,} spans deep, ours", ours, "CPU-s"))
    return rows


def _row(python: Path, what: str, spans: Iterable[Span]) -> Row:
    what += ", agentlightning 0.3.0"
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.writelines(f"{json.dumps(_theirs(span, number))}\n" for number, span in enumerate(spans))
        file.flush()
        script = Path(__file__).with_name("peer_adapter.py")
        command = [str(python), str(script), file.name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        except subprocess.TimeoutExpired:
            return Row("peer", what, None, note=f"not done after {_TIMEOUT_S} s")
        except subprocess.CalledProcessError as error:
            return Row("peer", what, None, note=f"it failed: {error.stderr.strip().splitlines()[-1]}")
    said = json.loads(done.stdout.strip().splitlines()[-1])
    if "error" in said:
        return Row("peer", what, None, note=said["error"])
    return Row("peer", what, said["seconds"], "CPU-s", note=f"{said['triplets']:,} triplets")


def _theirs(span: Span, number: int) -> dict:
    """Return a span as the peer writes it: the gateway's record is a completion, the client's span has no tokens."""
    attributes = {name: value for name, value in span.attributes.items() if not isinstance(value, bytes)}
    prompt = span.attributes.get(semconv.PROMPT_TOKEN_IDS)
    response = span.attributes.get(semconv.response_token_ids(0))
    if isinstance(prompt, bytes) and isinstance(response, bytes):
        attributes["prompt_token_ids"] = unpack_token_ids(prompt)
        attributes["response_token_ids"] = unpack_token_ids(response)
    return {
        "rollout_id": span.attributes[semconv.ROLLOUT_ID],
        "attempt_id": span.attributes[semconv.ATTEMPT_ID],
        "sequence_id": number,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_span_id,
        "name": "openai.chat.completion" if span.scope == semconv.GATEWAY_SCOPE else span.name,
        "start_time": float(span.start_ns),
        "end_time": float(span.end_ns),
        "attributes": attributes,
    }
