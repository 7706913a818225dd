"""From an ended span to the daemon's 2xx: first a record on disk, then a POST, then the record is forgotten.

Invariant: a span is deleted only after it was accepted; until then it survives this process.
"""
