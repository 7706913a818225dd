"""From an ended span to the daemon's 2xx: first a row on disk, then a POST, then the row is gone.

Invariant: a span is deleted only after it was accepted; until then it survives this process.
"""
