"""One file per agent framework, which tells which agent is speaking and records its tool calls.

``lightning_instrumentation.hooks.registry`` imports each file when its framework is imported, and not before.
"""
