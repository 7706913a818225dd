"""Runs in the peer's environment: times its adapter from spans (JSON lines) to triplets. Imports nothing of ours."""

import json
import sys
import time


def main(path: str) -> None:
    from agentlightning.adapter import TracerTraceToTriplet  # pyright: ignore[reportMissingImports]
    from agentlightning.types import Span  # pyright: ignore[reportMissingImports]

    with open(path) as lines:
        spans = [Span.from_attributes(**json.loads(line)) for line in lines]
    began = time.process_time()
    try:
        triplets = len(TracerTraceToTriplet().adapt(spans))
    except RecursionError:
        print(json.dumps({"error": "RecursionError: the trace is too deep for it"}))
        return
    print(json.dumps({"seconds": time.process_time() - began, "triplets": triplets}))


if __name__ == "__main__":
    main(sys.argv[1])
