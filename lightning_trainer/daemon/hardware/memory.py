"""How the daemon's process uses memory: what a burst needed is kept for the next one, and what is permanent is not
looked at again.

Deliveries are megabytes that live for milliseconds. As it comes, glibc gives each back to the kernel and faults it in
again, page by page, in an arena of every thread; and Python's collector walks over the hundred thousand objects of the
imported modules to find nothing. Together that is a sixth of what it takes to store a span.
Source: mallopt(3); Python's ``gc.freeze``.
"""

import ctypes
import gc

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h
_KEPT_BYTES = 64 * 2**20
_ARENAS = 2
_YOUNG_OBJECTS = 20_000
"""Allocated, over freed, between two looks at the youngest: more than the spans of one delivery."""


def settle_memory() -> None:
    """Called once by a process that is about to serve, when all is imported. Without glibc only Python is set."""
    allocator = ctypes.CDLL(None)
    if hasattr(allocator, "mallopt"):
        allocator.mallopt(_M_ARENA_MAX, _ARENAS)
        allocator.mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES // 2)
        allocator.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
