"""A program whose daemon is absent, hangs, or answers 500, compared with one without instrumentation: time a call."""

import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks.capture.alternating import take_turns
from benchmarks.capture.sizes import Sizes
from benchmarks.common.processes import Child, free_port
from benchmarks.common.rows import Row, at_most

SECTION = "absent"


def run(sizes: Sizes, folder: Path) -> list[Row]:
    with ExitStack() as stack:
        engine, receiver = (stack.enter_context(Child("common.servers.engine")) for _ in range(2))
        url, telemetry = engine.read()["url"], receiver.read()["url"]
        daemons = {
            "no instrumentation": ("none", telemetry),
            "daemon there": ("ours", f"{telemetry}/ok"),
            "daemon absent": ("ours", f"http://127.0.0.1:{free_port()}"),
            "daemon hangs": ("ours", f"{telemetry}/hang"),
            "daemon answers 500": ("ours", f"{telemetry}/fail"),
        }
        children = {
            name: stack.enter_context(
                Child(
                    "capture.programs.agent",
                    *("--instrument", instrument, "--engine", url, "--telemetry", daemon),
                    *("--case", "text", "--no-delivery"),
                    environment={"LIGHTNING_SPOOL_DIR": str(folder / "spool")},
                    errors=folder / "absent.log",
                )
            )
            for name, (instrument, daemon) in daemons.items()
        }
        for child in children.values():
            child.read()
        measured = take_turns(list(children.values()), calls=sizes.absent_calls, blocks=sizes.absent_blocks)
        ends_s = {name: _end_s(child) for name, child in children.items()}
    rows = []
    for name, one in list(zip(children, measured, strict=True))[1:]:
        end_ms = (ends_s[name] - ends_s["no instrumentation"]) * 1e3
        note = f"CPU added {one.added_cpu_ms:.2f} ms a call; the program's end takes {end_ms:.0f} ms longer"
        rows.append(at_most(SECTION, f"added to a call, {name}", one.added_wall_ms, 1.0, "ms", note))
    return rows


def _end_s(child: Child) -> float:
    child.ask("end")
    began_s = time.perf_counter()
    child.process.wait(60)
    return time.perf_counter() - began_s
