"""``python -m lightning_trainer.serving.host``: settings on standard input, then one line of JSON on standard output.

The line is ``{"port": ...}`` once requests are answered. A failure prints ``{"error": ...}``, and the exit status is 1.
Everything else that vLLM's processes print goes to standard error.
"""

import asyncio
import json
import logging
import os
import shutil
import sys
import time
from typing import Any

from lightning_trainer.errors import EngineError
from lightning_trainer.serving.host.environ import prepare
from lightning_trainer.serving.host.settings import HostSettings


def main() -> int:
    """Run an engine host until its parent ends it; return the exit status."""
    started = time.monotonic()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # The parent reads this pipe to its end: no child may hold it open.
    os.register_at_fork(after_in_child=answers.close)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.INFO)

    def announce(document: dict[str, Any]) -> None:
        answers.write(json.dumps(document) + "\n")
        answers.flush()

    try:
        settings = HostSettings.from_line(sys.stdin.buffer.readline().decode("utf-8"))
        try:
            version = prepare(settings)
            from lightning_trainer.serving.host.server import serve

            def ready(document: dict[str, Any]) -> None:
                announce({**document, "vllm": version, "startup_s": time.monotonic() - started})

            asyncio.run(serve(settings, ready))
        finally:
            shutil.rmtree(settings.scratch, ignore_errors=True)
    except EngineError as error:
        announce({"error": str(error)})
        return 1
    except Exception as error:
        logging.getLogger(__name__).exception("the engine did not start")
        announce({"error": f"{type(error).__name__}: {error}"})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
