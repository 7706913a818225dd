"""One file per agent framework: who is speaking, and what its tools do.

Each is imported by ``lightning_instrumentation.hooks.registry`` when its framework is, and not before.
"""
