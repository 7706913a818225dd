"""Forked processes of ``multiprocessing`` end with ``os._exit``, so no exit handler runs in them.

Their spans are on disk and would be delivered by the next process; this delivers them when the child ends.
"""

from multiprocessing.process import parent_process
from typing import Any

from lightning_instrumentation.runtime import deliver_at_exit


def deliver_at_end_of_child(module: Any) -> None:
    """Hook of ``multiprocessing.util``, whose finalizers run before such a child ends and are cleared at each fork."""

    def arrange(deliver: Any) -> None:
        module.Finalize(None, deliver, exitpriority=0)

    module.register_after_fork(deliver_at_exit, arrange)
    if parent_process() is not None:
        arrange(deliver_at_exit)
