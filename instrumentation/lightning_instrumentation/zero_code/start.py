"""Runs at the start of every interpreter below ``lightning-trainer run``: hooks, and the program's rollout."""

from __future__ import annotations

import atexit
import os
import sys
from dataclasses import replace
from functools import cache

from lightning_instrumentation.failures import failures, guarded
from lightning_instrumentation.hooks.registry import install_hooks
from lightning_instrumentation.rollout import RunRollout
from lightning_instrumentation.scope import Identity, Scope, use_scope
from lightning_instrumentation.zero_code.environ import BEGUN, ProgramRollout, read_rollout


@cache
def start() -> None:
    """Install the hooks and join the program's rollout, once in a process; never raises."""
    install_hooks()
    guarded("program-rollout", _join_rollout)


def _join_rollout() -> None:
    program = read_rollout(os.environ)
    if program is None:
        return
    if program.pid is None and not os.environ.get(BEGUN):
        program = replace(program, pid=os.getpid())
    if program.pid != os.getpid():
        if not os.environ.get(BEGUN):
            failures.note(
                "program-rollout",
                f"the command of `lightning-trainer run` is not a Python program, so the rollout {program.rollout_id} "
                "has no beginning and no end; run the Python program in it with --task instead",
            )
        ids = (program.rollout_id, program.attempt_id, program.task_id, program.group_id)
        identity = Identity(*ids, program.mode, of_run=True)
        use_scope(Scope(identity)).__enter__()
        return
    rollout = RunRollout(
        program.task_id,
        group_id=program.group_id,
        rollout_id=program.rollout_id,
        attempt_id=program.attempt_id,
        mode=program.mode,
    )
    os.environ[BEGUN] = "1"
    rollout.__enter__()
    # Exit handlers run last in, first out: the program's own run before this one, and delivery after it.
    atexit.register(_end, rollout, program)


def _end(rollout: RunRollout, program: ProgramRollout) -> None:
    if os.getpid() != program.pid:
        return  # a forked child that ends cleanly: the rollout is its parent's
    # The uncaught exception that ended the program, if any; `sys.exit` leaves nothing here.
    error = getattr(sys, "last_value", None)
    rollout.__exit__(type(error) if error is not None else None, error, None)
