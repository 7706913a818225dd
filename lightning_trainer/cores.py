"""How many cores there are for us."""

import os


def available_cores() -> int:
    """Return the number of cores that this process may run on (containers and ``taskset`` included)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
